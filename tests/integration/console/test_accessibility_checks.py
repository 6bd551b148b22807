"""The checks of pages find the faults that they are to find."""

from __future__ import annotations

from support.console.accessibility import faults_of
from support.console.chromium import Chromium

GOOD = """<!doctype html><html lang="en"><head><title>Orders</title></head><body><main>
<h1>Orders</h1><h2>Late</h2>
<label>Key <input name="key"></label> <button>Find</button>
<table><tr><th scope="col">Key</th></tr></table>
{}</main></body></html>"""


FAULTS = {
    "<h4>Deep</h4>": "an h4 follows an h2",
    "<h1>Again</h1>": "the page has not one h1",
    "<i id=a></i><i id=a></i>": "two elements have the id a",
    "<input placeholder=Key>": "no name: <input",
    "<button title=' '></button>": "no name: <button",
    "<svg></svg>": "an image without a role: <svg",
    "<table><tr><td>1</td></tr></table>": "a table without headings",
    "<table><tr><th>Key</th></tr></table>": "a heading of a table without a scope",
    "<style>[data-theme=dark] p { color: #888; background: #fff }</style><p>pale</p>": (
        "dark: P. has a contrast of 3.54"
    ),
    "<button tabindex=-1>Find</button>": "the tab key does not reach <button",
    "<div style='width: 500px'>wide</div>": "wider than a phone: <div",
}


async def test_each_kind_of_fault_is_found(chromium: Chromium) -> None:
    """B14: and a page without a fault has none."""

    def look() -> dict[str, list[str]]:
        with chromium.context(zone="UTC") as context:
            page = context.new_page()
            found = {}
            for part in ("", *FAULTS):
                page.set_content(GOOD.format(part))
                found[part] = faults_of(page)
            return found

    found = await chromium.run(look)
    assert found.pop("") == []
    assert {part: fault.partition(FAULTS[part])[1] for part, (fault,) in found.items()} == FAULTS
