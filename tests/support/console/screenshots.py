"""Takes the pictures of the console for the documentation: ``make screenshots``.

Each page is shown in light and dark, at a time that stands still. So a picture changes only if its
page does, or the fonts of the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from escapement import testing
from support.console.addresses import PICTURES
from support.console.chromium import Chromium, running_chromium
from support.console.filled import ORDERS, Filled, filled
from support.console.pictures import with_palette
from support.console.tab import Tab, browsing, serving

# Long pages are cut off below.
_HEIGHT_PX: Final = 1100
_SIZE: Final = "[innerWidth, Math.floor(document.body.getBoundingClientRect().height)]"


async def take(chromium: Chromium, folder: Path) -> None:
    """Write a picture of each page to a folder, in light and dark."""
    async with filled() as shop, serving(shop.world) as url:
        for theme in ("light", "dark"):
            await _of_theme(chromium, shop, url, folder, theme)


async def _of_theme(chromium: Chromium, shop: Filled, url: str, folder: Path, theme: str) -> None:
    is_dark = theme == "dark"
    async with browsing(chromium, url, token=shop.admin.text, dark=is_dark) as tab:
        for name, address in PICTURES.items():
            await tab.open(address)
            await _write(tab, folder / f"{name}-{theme}.png")
        await tab.previews(ORDERS, "cancel")
        await _write(tab, folder / f"act-{theme}.png")
    async with browsing(chromium, url, token=shop.admin.text, dark=is_dark, phone=True) as tab:
        await tab.open(PICTURES["timeline"])
        await _write(tab, folder / f"phone-{theme}.png")


async def _write(tab: Tab, path: Path) -> None:
    def shoot(page: Page) -> None:
        if page.locator("[data-live]").count():
            page.wait_for_selector("[data-live-sign]:not(.away)")
        size = page.evaluate(_SIZE)
        clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], _HEIGHT_PX)}
        png = page.screenshot(full_page=True, clip=clip, animations="disabled")
        blank = page.context.new_page()  # without the policy of the console
        path.write_bytes(with_palette(png, blank))
        blank.close()

    await tab.does(shoot)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with running_chromium() as chromium:
        testing.run(take, chromium, folder)
    print(f"{sum(one.stat().st_size for one in folder.iterdir()):,} bytes in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
