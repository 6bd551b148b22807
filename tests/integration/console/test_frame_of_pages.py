"""Keys and themes, which all pages have. In a real browser."""

from __future__ import annotations

import trio.testing

from escapement import testing
from support.console.chromium import Chromium
from support.console.tab import browsing, serving

GROUND = "getComputedStyle(document.body).backgroundColor"
FOCUS = "document.activeElement.id"


async def test_keys_reach_the_search_the_pages_and_their_own_list(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: in a field, they are ordinary letters."""
    async with (
        testing.start() as world,
        serving(world) as url,
        browsing(chromium, url) as tab,
    ):
        await tab.open("/")
        await tab.press("?")
        await tab.shows("Next and previous row", "dialog[open]")
        await tab.press("Escape")
        assert await tab.count("dialog[open]") == 0
        await tab.press("/", "g", "b", "?", "/")
        assert await tab.evaluate("document.getElementById('search').value") == "gb?/"
        assert await tab.evaluate(FOCUS) == "search"
        await tab.press("Escape")
        assert await tab.evaluate(FOCUS) == ""
        await tab.press("g", "f")
        await tab.goes("/find")
        await tab.press("g", "x", "t")
        assert await tab.path() == "/find"
        await tab.press("g", "t")
        await tab.goes("/")


async def test_theme_is_that_of_the_system_until_the_user_chooses_one(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: the choice lasts, and holds on the page to sign in too."""
    async with (
        testing.start() as world,
        serving(world) as url,
        browsing(chromium, url, dark=True) as tab,
        browsing(chromium, url) as other,
    ):
        await tab.open("/")
        await other.open("/")
        dark, light = await tab.evaluate(GROUND), await other.evaluate(GROUND)
        assert dark != light
        await tab.click("[data-theme-switch]")
        assert await tab.evaluate(GROUND) == light
        for path in ("/?by=day", "/login"):
            await tab.open(path)
            assert await tab.evaluate(GROUND) == light
        await tab.open("/")
        await tab.click("[data-theme-switch]")
        assert await tab.evaluate(GROUND) == dark
