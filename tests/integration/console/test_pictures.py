"""The pictures of the console for its guide: ``make screenshots``."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from support.console.addresses import PICTURES
from support.console.chromium import Chromium
from support.console.pictures import with_palette

DOCS: Final = Path(__file__).parents[3] / "docs"
# A repository keeps each version of a picture for good.
MOST_BYTES: Final = 2_000_000
# Three colours, in rows of odd length.
DRAWN: Final = """<body style="margin: 0; background: #fbfbf9"><div style="width: 3px; height: 5px;
    background: #b3261e; border-right: 2px solid #22693a"></div>"""
PIXELS: Final = """async (png) => {
    const found = await (await fetch("data:image/png;base64," + png)).blob();
    const image = await createImageBitmap(found);
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
    canvas.drawImage(image, 0, 0);
    return [...canvas.getImageData(0, 0, image.width, image.height).data].join();
}"""


def test_guide_shows_each_picture_in_both_themes() -> None:
    """B14: and the pictures are small."""
    text = (DOCS / "guides" / "console-pictures.md").read_text()
    files = list((DOCS / "images" / "console").iterdir())
    names = [*PICTURES, "act", "phone"]
    assert {one.name for one in files} == {
        f"{name}-{theme}.png" for name in names for theme in ("light", "dark")
    }
    for one in files:
        theme = one.stem.rpartition("-")[2]
        assert f"(../images/console/{one.name}#only-{theme})" in text, one.name
    assert sum(one.stat().st_size for one in files) < MOST_BYTES


async def test_picture_with_a_palette_has_the_same_pixels(chromium: Chromium) -> None:
    """B14: and is a smaller file."""

    def compare() -> tuple[bool, bool]:
        with chromium.context(zone="UTC") as context:
            page: Page = context.new_page()
            page.set_content(DRAWN)
            clip = {"x": 0, "y": 0, "width": 333, "height": 77}
            png = page.screenshot(clip=clip)
            smaller = with_palette(png, page)
            pixels = [
                page.evaluate(PIXELS, base64.b64encode(one).decode()) for one in (png, smaller)
            ]
            return pixels[0] == pixels[1], len(smaller) < len(png)

    assert await chromium.run(compare) == (True, True)
