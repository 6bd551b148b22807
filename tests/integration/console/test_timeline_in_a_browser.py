"""The timeline in a real browser: its bars, and how it follows the broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pytest
import trio.testing
from playwright.sync_api import Page

from escapement import testing
from escapement.console.visit.live import ANSWER_S, LIVE_S
from escapement.storage.engine.base import Engine
from escapement.testing import START_MS
from support.console.chromium import Chromium
from support.console.tab import Tab, at_the_console, browsing, serving

HOUR_MS: Final = 3_600_000
# START_MS is a full hour, so the bars of hours begin with it.
BARS: Final = """() => [...document.querySelectorAll("a[data-from]")]
    .map((bar) => [
        Number(bar.dataset.from), bar.ariaLabel, bar.querySelector(".bar").height.baseVal.value,
    ])
    .filter(([from, label, height]) => height > 0)"""


async def bars(tab: Tab) -> dict[int, str]:
    """Return the labels of the bars that are not empty by their hours from the start."""
    return {(ms - START_MS) // HOUR_MS: label for ms, label, _ in await tab.evaluate(BARS)}


async def test_timeline_shows_what_falls_due_and_what_is_overdue(
    mock_clock: trio.testing.MockClock, engine: Engine, chromium: Chromium
) -> None:
    """B14: dragging over bars lists the messages that fall due then."""
    async with at_the_console(chromium, engine=engine) as (world, broker, tab):
        await broker.admin("subscriptions.create", topic="mails", subscription="sender")
        producer = await broker.producer("mails")
        for hours, count in ((0, 4), (1, 3), (3, 20), (30, 1)):
            await producer.send_many([b"m"] * count, delay=timedelta(hours=hours))
        await world.clock.advance(minutes=1)

        assert await tab.open("/") == 200
        assert "4 ⚠ overdue" in " ".join((await tab.text()).split())
        fill = 'getComputedStyle(document.querySelector(".overdue .bar")).fill'
        assert "overdue-stripes" in await tab.evaluate(fill)
        assert await bars(tab) == {
            1: "Thu 24 Dec 2026 14:00:00: 3 messages",
            3: "Thu 24 Dec 2026 16:00:00: 20 messages",
            30: "Fri 25 Dec 2026 19:00:00: 1 messages",
        }
        heights = [height for _, _, height in await tab.evaluate(BARS)]
        assert heights[0] / heights[1] == pytest.approx(3 / 20)

        def drag(page: Page) -> None:
            places = page.locator("a[data-from] .hit")
            page.mouse.move(*middle(places.nth(2).bounding_box()))
            page.mouse.down()
            page.mouse.move(*middle(places.nth(4).bounding_box()))
            assert page.locator("a.chosen").count() == 3
            page.mouse.move(*middle(places.nth(1).bounding_box()))
            page.mouse.up()

        await tab.does(drag)
        span = f"from={START_MS + HOUR_MS}&until={START_MS + 3 * HOUR_MS}"
        await tab.goes(f"/find?{span}")


def middle(box: dict[str, float] | None) -> tuple[float, float]:
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


async def test_timeline_follows_the_broker_while_somebody_may_see_it(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: a hidden tab loads nothing until it is shown again."""
    async with (
        testing.start() as world,
        world.connect() as broker,
        serving(world) as url,
        browsing(chromium, url) as tab,
        browsing(chromium, url) as hidden,
    ):
        producer = await broker.producer("mails")
        for one in (tab, hidden):
            await one.open("/?by=minute")
            await one.follows()
        await hidden.hide(True)
        await producer.send_many([b"m"] * 7, delay=timedelta(minutes=10))
        await world.clock.advance(seconds=2)
        await tab.shows("7fall due in this time")
        assert "0\nfall due in this time" in await hidden.text()
        await hidden.hide(False)
        await hidden.shows("7fall due in this time")


async def test_timeline_stays_as_it_is_while_the_user_works_in_it(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: it shows the newest numbers when the user has left it."""
    async with (
        testing.start() as world,
        world.connect() as broker,
        serving(world) as url,
        browsing(chromium, url) as tab,
        browsing(chromium, url) as other,
    ):
        for one in (tab, other):
            await one.open("/?by=minute")
            await one.follows()
        await tab.evaluate("document.querySelector('a[data-from]').focus()")
        await (await broker.producer("mails")).send_many([b"m"] * 7, delay=timedelta(minutes=10))
        await world.clock.advance(seconds=LIVE_S)
        await other.shows("7fall due in this time")
        assert "0\nfall due in this time" in await tab.text()
        await tab.press("/")
        await tab.shows("7fall due in this time")


async def test_timeline_says_that_it_does_not_follow_a_broker_that_is_down(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: it follows the broker again without a reload."""
    async with (
        testing.start() as world,
        serving(world) as url,
        browsing(chromium, url) as tab,
    ):
        await tab.open("/")
        await tab.follows()
        await world.crash()
        for _ in range(round(LIVE_S + ANSWER_S)):
            await world.clock.advance(seconds=1)
        await tab.has("[data-live-sign].away")
        await tab.shows("No broker has answered", "[data-live-sign]")
        assert "fall due in this time" in await tab.text()  # the last count stays
        await world.restart()
        await world.clock.advance(minutes=1)
        await tab.follows()


async def test_times_are_in_the_zone_of_the_browser(
    mock_clock: trio.testing.MockClock, chromium: Chromium
) -> None:
    """B14: also those of the first page, which the browser then loads again."""
    options = {"zone": "America/St_Johns", "knows_zone": False}
    async with at_the_console(chromium, **options) as (_, broker, tab):
        await (await broker.producer("mails")).send(b"m", delay=timedelta(minutes=10))
        await tab.open("/?by=minute")
        await tab.shows("Times in America/St_Johns", "footer")
        ((_, label, _),) = await tab.evaluate(BARS)
        assert label == "Thu 24 Dec 2026 08:40:00: 1 messages"
