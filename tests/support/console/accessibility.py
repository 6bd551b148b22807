"""Faults of a page for people who use a keyboard, a screen reader, weak eyes or a phone.

The checks are those that need little code: names, headings, contrast, the reach of the tab key, and
the width of a phone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from playwright.sync_api import Page

_SCRIPT: Final = Path(__file__).with_suffix(".js").read_text()
_PHONE: Final = {"width": 390, "height": 844}
# Numbers the elements that the tab key must reach. Of radio buttons with one name, it reaches one.
_NUMBER: Final = """() => {
    const controls = "a[href], button, summary, select, textarea, input";
    const found = [...document.querySelectorAll(controls)]
        .filter((one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled
            && one.type !== "hidden" && one.type !== "radio");
    window.reached = new Set();
    document.addEventListener("focusin", (event) => window.reached.add(event.target));
    window.wanted = found;
    return found.length;
}"""
_MISSED: Final = """() => window.wanted.filter((one) => !window.reached.has(one))
    .map((one) => "the tab key does not reach " + one.outerHTML.slice(0, 120))"""
_TOO_WIDE: Final = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [
    "wider than a phone: " + [...document.querySelectorAll("main *")]
        .filter((one) => one.getBoundingClientRect().right > innerWidth
            && !one.parentElement.closest(".scroll, .chart, pre"))
        .slice(0, 3).map((one) => one.outerHTML.slice(0, 120)).join(" | ")]"""


def faults_of(page: Page) -> list[str]:
    """Return the faults of the page that a browser shows."""
    faults: list[str] = page.evaluate(_SCRIPT)
    # Most controls take one press. Date fields have several parts.
    for at in range(2 * page.evaluate(_NUMBER)):
        page.keyboard.press("Tab")
        if at % 10 == 0 and not page.evaluate(_MISSED):
            break
    faults += page.evaluate(_MISSED)
    size = page.viewport_size
    page.set_viewport_size(_PHONE)
    faults += page.evaluate(_TOO_WIDE)
    page.set_viewport_size(size)
    return faults
