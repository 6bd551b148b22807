"""Each page of the console in a real browser, for a broker with something to show."""

from __future__ import annotations

from typing import Final

import trio.testing
from playwright.sync_api import Page

from escapement.storage.engine.base import Engine
from support.console.accessibility import faults_of
from support.console.addresses import parts, whole_pages
from support.console.chromium import Chromium
from support.console.filled import MAILS, ORDERS, filled
from support.console.tab import Tab, browsing, serving

# It would run in a page that does not escape it. The policy for contents would then stop it, and
# the browser would report that.
HOSTILE: Final = """'"></textarea></script><script>alert(1)</script><img src=x onerror=alert(1)>"""
# Pages that show a text of a message, a reason or a schedule's key.
QUOTING: Final = {"/audit", "/find", "/jobs", "/messages/{id:path}"}
# Pages that are forms as a whole. They say that the broker would refuse, or it does.
FORMS: Final = {"/produce", "/schedules/new", "/schedules/{tenant}/{namespace}/{name}/edit"}


async def settled(tab: Tab) -> None:
    """Wait until the live part of a page has been replaced, if it has one."""
    if await tab.count("[data-live]"):
        await tab.follows()


async def test_each_page_shows_a_full_broker(
    mock_clock: trio.testing.MockClock, engine: Engine, chromium: Chromium
) -> None:
    """B14: without errors, and without running scripts in the texts of messages."""
    async with (
        filled(engine, HOSTILE) as shop,
        serving(shop.world, banner="production") as url,
        browsing(chromium, url, token=shop.admin.text) as tab,
    ):
        quoting = set()
        for path, examples in whole_pages().items():
            for address in examples:
                assert await tab.open(address) == 200, (address, await tab.text())
                await settled(tab)
                if "alert(1)" in await tab.text():
                    quoting.add(path)
        assert quoting >= QUOTING
        for address in parts():
            assert await tab.does(lambda page, at=url + address: page.request.get(at).ok), address


async def test_each_page_has_names_contrast_and_room_for_everybody(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: for keyboards, screen readers, weak eyes and phones, in both themes."""

    def look(page: Page) -> list[str]:
        return faults_of(page)

    async with (
        filled() as shop,
        serving(shop.world, banner="production") as url,
        browsing(chromium, url, token=shop.admin.text) as tab,
    ):
        faults = {}
        for address, *_ in [["/login"], *whole_pages().values()]:
            await tab.open(address)
            await settled(tab)
            faults[address] = await tab.does(look)
        for action in ("cancel", "reschedule"):
            await tab.previews(ORDERS, action)
            faults[action] = await tab.does(look)
        assert {address: found for address, found in faults.items() if found} == {}


async def test_user_who_may_only_look_sees_all_pages_but_no_payload(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: and no button that changes something."""
    secret = "Thank you"  # in the payload of each mail
    async with (
        filled() as shop,
        serving(shop.world) as url,
        browsing(chromium, url, token=shop.viewer.text) as tab,
        browsing(chromium, url, token=shop.admin.text) as admin,
    ):
        for path, (address, *_) in whole_pages().items():
            if path == "/audit":
                continue
            assert await tab.open(address) == 200, (address, await tab.text())
            if path not in FORMS:
                assert await tab.count("main form[method=post] button") == 0, address
        for address in (f"/messages/{MAILS}@0", f"/dead-letters/{MAILS}/sender/0"):
            for one, shows in ((tab, False), (admin, True)):
                await one.open(address)
                assert (secret in await one.evaluate("document.body.textContent")) == shows
        for one, status in ((tab, 403), (admin, 200)):
            answer = await one.does(lambda page: page.request.get(f"{url}/payloads/{MAILS}@0"))
            assert answer.status == status
