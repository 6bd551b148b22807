"""The previews of forms follow the fields, in a real browser."""

from __future__ import annotations

from datetime import UTC, datetime

import trio.testing

from escapement import testing
from escapement.clock import unix_ms
from support.console.chromium import Chromium
from support.console.tab import Tab, browsing, serving

# Friday. The clocks of Berlin, the zone of the browser, go forward on Sunday.
START_MS = unix_ms(datetime(2027, 3, 26, 12, tzinfo=UTC))


async def _enter(tab: Tab, name: str, text: str) -> None:
    """Write a text into a field of the form."""
    await tab.does(lambda page: page.fill(f"main [name={name}]", text))


async def test_times_are_shown_while_the_user_types(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: the next occurrences of a schedule, and when a message is due."""
    async with (
        testing.start(start_ms=START_MS) as world,
        serving(world) as url,
        browsing(chromium, url) as tab,
    ):
        await tab.open("/schedules/new")
        await _enter(tab, "name", "shop/eu/report")
        await _enter(tab, "topic", "shop/eu/reports")
        await _enter(tab, "cron", "0 99 * * *")
        await tab.shows("Bad hour")
        await _enter(tab, "cron", "0 9 * * *")
        await tab.shows("Sun 28 Mar 2027 09:00:00 in 1 d 19 h the clocks go forward by 1 h")
        await tab.click("text=Create")
        await tab.goes("/schedules/shop/eu/report")
        await tab.shows("the clocks go forward by 1 h")

        await tab.open("/produce")
        await _enter(tab, "topic", "shop/eu/mails")
        await tab.click("text=At a time")
        await _enter(tab, "at", "2027-03-28T02:30:00")
        await tab.shows("The clocks skip this time of day.")
        await _enter(tab, "at", "2027-03-29T09:00:00")
        await tab.shows("2027-03-29T07:00:00.000Z in UTC, in 2 d 19 h.")
        await tab.click("main button.main")
        await tab.shows("There is no topic shop/eu/mails.", "[role=alert]")
        tab.problems.clear()  # the browser reports the status of the answer
        await tab.click("[name=create]")
        await tab.click("main button.main")
        await tab.shows("Its id is shop/eu/mails@0.")
        async with world.connect() as broker:
            due = (await broker.show("shop/eu/mails@0")).due_at
            assert due == datetime(2027, 3, 29, 7, tzinfo=UTC)
