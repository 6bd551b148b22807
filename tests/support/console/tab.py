"""A tab of a browser that shows the console: the verbs of a user, for tests.

Each verb waits until it can be done. The broker's clock stands still meanwhile, unless the test
advances it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import trio
from playwright.sync_api import Page, expect

from escapement.client.broker import Broker
from escapement.console.config import ConsoleConfig
from escapement.console.console import run_console
from escapement.console.visit.view import ZONE_COOKIE
from escapement.storage.engine.base import Engine
from escapement.testing import World, start
from support.console.chromium import STEP_MS, Chromium

T = TypeVar("T")

# The zone of the browsers in tests. Its clocks change.
ZONE: Final = "Europe/Berlin"


class Tab:
    """A tab.

    Attributes:
      url: the address of the console.
      problems: what the browser complained about: errors of scripts, violations of the policy for
        contents, and requests that failed. A test that causes one must clear it.
    """

    def __init__(self, chromium: Chromium, url: str, page: Page) -> None:
        self._chromium = chromium
        self._page = page
        self.url: Final = url
        self.problems: Final[list[str]] = []
        page.on("console", lambda said: said.type in ("error", "warning") and self._note(said.text))
        page.on("pageerror", lambda error: self._note(str(error)))

    def _note(self, problem: str) -> None:
        self.problems.append(f"{self._page.url}: {problem}")

    async def does(self, step: Callable[[Page], T]) -> T:
        """Run a step with the page of Playwright."""
        return await self._chromium.run(lambda: step(self._page))

    async def open(self, path: str) -> int:
        """Open a page of the console, and return the status of the answer."""

        def step(page: Page) -> int:
            answer = page.goto(self.url + path)
            assert answer is not None
            return answer.status

        return await self.does(step)

    async def path(self) -> str:
        """Return the path and the query of the page."""
        return await self.does(lambda page: page.url.removeprefix(self.url))

    async def previews(self, topic: str, action: str) -> None:
        """Select all messages on the page Find of a topic, and open the preview of an action."""
        await self.open(f"/find?where={topic}")
        await self.click("[data-all]")
        await self.click(f"[data-selection] button[value={action}]")
        await self.has("form[action='/act/now']")

    async def goes(self, path: str) -> None:
        """Wait until the tab shows a page."""
        await self.does(lambda page: page.wait_for_url(self.url + path))

    async def click(self, selector: str) -> None:
        """Click on what a selector finds, such as ``text=Sign out``."""
        await self.does(lambda page: page.click(selector))

    async def fill(self, label: str, text: str) -> None:
        """Write a text into the field whose label begins with a text."""
        begins = re.compile(rf"^\s*{re.escape(label)}")
        await self.does(lambda page: page.locator("main").get_by_label(begins).fill(text))

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, such as ``Enter`` or ``g``."""
        for key in keys:
            await self.does(lambda page, key=key: page.keyboard.press(key))

    async def shows(self, text: str, selector: str = "body") -> None:
        """Wait until an element has a text."""
        await self.does(
            lambda page: expect(page.locator(selector)).to_contain_text(text, timeout=STEP_MS)
        )

    async def has(self, selector: str) -> None:
        """Wait until the page shows what a selector finds."""
        await self.does(lambda page: page.wait_for_selector(selector))

    async def follows(self) -> None:
        """Wait until the live part of the page follows the broker."""
        await self.has("[data-live-sign]:not(.away)")

    async def text(self, selector: str = "main") -> str:
        """Return the text that an element shows."""
        return await self.does(lambda page: page.inner_text(selector))

    async def count(self, selector: str) -> int:
        """Return how many elements a selector finds."""
        return await self.does(lambda page: page.locator(selector).count())

    async def hide(self, hidden: bool) -> None:
        """Tell the page that its tab is hidden, or shown again. Without a screen, none is."""
        await self.evaluate(
            """(hidden) => {
                Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )

    async def evaluate(self, script: str, *arguments: Any) -> Any:
        """Return the value of a function in JavaScript."""
        return await self.does(lambda page: page.evaluate(script, *arguments))


@asynccontextmanager
async def serving(world: World, *, banner: str = "") -> AsyncIterator[str]:
    """Run a console for a broker at a port of its own, and provide its address."""
    over = trio.Event()
    config = ConsoleConfig("127.0.0.1", 0, banner=banner)

    async def run(task_status: trio.TaskStatus[str]) -> None:
        def connect(token: str) -> Any:
            return world.connect(token=token or None)

        await run_console(
            config, connect, connect, over.wait, task_status.started, world.clock.now_ms
        )

    async with trio.open_nursery() as nursery:
        address = await nursery.start(run)
        try:
            yield f"http://{address}"
        finally:
            over.set()


@asynccontextmanager
async def browsing(
    chromium: Chromium,
    url: str,
    *,
    token: str = "",
    dark: bool = False,
    phone: bool = False,
    zone: str = ZONE,
    knows_zone: bool = True,
) -> AsyncIterator[Tab]:
    """Open a tab of a new browser, without cookies.

    Args:
      url: the address of the console.
      token: the token to sign in with; "" for none.
      knows_zone: whether the console knows the zone from the first page on.
    """

    def begin() -> Tab:
        context = chromium.context(dark=dark, phone=phone, zone=zone)
        if knows_zone:
            context.add_cookies([{"name": ZONE_COOKIE, "value": zone, "url": url}])
        return Tab(chromium, url, context.new_page())

    tab = await chromium.run(begin)
    try:
        if token:
            await tab.open("/login")
            await tab.fill("Token", token)
            await tab.click("text=Sign in")
            await tab.goes("/")
        yield tab
    finally:
        with trio.CancelScope(shield=True):
            await tab.does(lambda page: page.context.close())
    assert not tab.problems, tab.problems


@asynccontextmanager
async def at_the_console(
    chromium: Chromium, *, engine: Engine | None = None, **options: Any
) -> AsyncIterator[tuple[World, Broker, Tab]]:
    """Start a broker, a client of it and its console, and open a tab.

    Args:
      options: those of ``browsing``.
    """
    async with (
        start(engine=engine) as world,
        world.connect() as broker,
        serving(world) as url,
        browsing(chromium, url, **options) as tab,
    ):
        yield world, broker, tab
