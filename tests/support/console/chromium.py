"""A browser for tests: Debian's Chromium, driven by Playwright in a thread of its own.

Playwright's objects belong to the thread that made them. So a test hands each step to that thread,
and the event loop of the test goes on serving the pages meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

import trio
from playwright.sync_api import Browser, BrowserContext, sync_playwright

T = TypeVar("T")

# The names of browsers that Playwright can drive. Each is of Chromium.
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
# With these, a page looks the same each time that it is drawn.
_OPTIONS: Final = ("--disable-partial-raster", "--num-raster-threads=1")
# The longest wait of a step. Steps that succeed wait for much less.
STEP_MS: Final = 60_000


class Chromium:
    """A browser process. Each test opens contexts of its own in it, which share nothing."""

    def __init__(self, thread: ThreadPoolExecutor, browser: Browser) -> None:
        self._thread = thread
        self._browser = browser

    async def run(self, step: Callable[[], T]) -> T:
        """Run a step in the thread of the browser, while the event loop goes on."""
        return await trio.to_thread.run_sync(self._thread.submit(step).result)

    def context(self, *, dark: bool = False, phone: bool = False, zone: str) -> BrowserContext:
        """Return a new context, as of a user who has just installed the browser.

        It must be called in a step.
        """
        context = self._browser.new_context(
            viewport={"width": 390, "height": 844} if phone else {"width": 1280, "height": 800},
            color_scheme="dark" if dark else "light",
            timezone_id=zone,
            locale="en-GB",
            reduced_motion="reduce",
        )
        context.set_default_timeout(STEP_MS)
        return context


@contextmanager
def running_chromium() -> Iterator[Chromium]:
    """Start a browser, and end it at last."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "the tests of the console need a browser: apt-get install chromium"
    # As root, the browser has no sandbox. It only loads pages of the tests.
    arguments = [*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with ThreadPoolExecutor(1, "chromium") as thread:
        playwright = thread.submit(sync_playwright().start).result()
        try:
            launch = playwright.chromium.launch
            started = thread.submit(launch, executable_path=program, args=arguments)
            browser = started.result()
            try:
                yield Chromium(thread, browser)
            finally:
                thread.submit(browser.close).result()
        finally:
            thread.submit(playwright.stop).result()
