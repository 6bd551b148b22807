"""The headers of the pages, as a browser obeys them, and the name of the environment."""

from __future__ import annotations

from typing import Final

import trio.testing
from playwright.sync_api import Page

from escapement import testing
from support.console.chromium import Chromium
from support.console.tab import at_the_console
from support.console.visitor import visiting

# What a text of a message would do if a page did not escape it. Nothing of it may happen.
_ATTACK: Final = """() => {
    window.refused = new Set();
    document.addEventListener("securitypolicyviolation",
        (event) => window.refused.add(event.effectiveDirective));
    const script = document.createElement("script");
    script.textContent = "window.ran = true";
    const far = document.createElement("script");
    far.src = "https://attacker.example/a.js";
    document.body.append(script, far);
    document.body.insertAdjacentHTML("beforeend", `
        <button onclick="window.ran = true"></button>
        <style>body { display: none }</style>
        <img src="https://attacker.example/a.png">
        <iframe src="https://attacker.example/"></iframe>
        <base href="https://attacker.example/">`);
    document.body.querySelector("button:last-of-type").click();
    fetch("https://attacker.example/").catch(() => undefined);
}"""
_REFUSED: Final = [
    "base-uri",
    "connect-src",
    "frame-src",
    "img-src",
    "script-src-attr",
    "script-src-elem",
    "style-src-elem",
]


async def test_page_runs_no_script_but_its_own_and_loads_nothing_from_elsewhere(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: even if a page failed to escape a text."""

    def attack(page: Page) -> list[str]:
        page.evaluate(_ATTACK)
        page.wait_for_function(f"window.refused.size >= {len(_REFUSED)}")
        refused: list[str] = page.evaluate("[...window.refused].sort()")
        return refused

    async with at_the_console(chromium) as (_, _, tab):
        await tab.open("/find")
        assert await tab.does(attack) == _REFUSED
        assert not await tab.evaluate("window.ran")
        tab.problems.clear()


async def test_no_site_may_frame_a_page_and_no_cache_keeps_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: also if the answer is an error, or the form to sign in."""
    async with testing.start() as world, visiting(world) as visitor:
        for path in ("/", "/login", "/messages/x", "/nowhere", "/payloads/public/default/t@0"):
            headers = (await visitor.get(path)).headers
            assert "frame-ancestors 'none'" in headers["content-security-policy"], path
            assert headers["cache-control"] == "no-store", path
            assert headers["x-content-type-options"] == "nosniff", path


async def test_banner_names_the_environment_on_each_page(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: also where the user signs in, and on errors."""
    async with testing.start() as world, visiting(world, banner="production <b>") as visitor:
        for path in ("/", "/find", "/brokers", "/login", "/nowhere", "/messages/x"):
            page = (await visitor.get(path)).text
            assert '<p class="banner" role="note">production &lt;b&gt;</p>' in page, path
