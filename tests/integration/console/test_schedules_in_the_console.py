"""The pages about schedules: the list, one schedule, and the form of a new or changed one."""

from __future__ import annotations

from datetime import UTC, datetime

import trio.testing

from escapement import testing
from escapement.clock import unix_ms
from support.console.visitor import Visitor, text_of, visiting
from support.roles import begin, connected, new_token

# Friday. The clocks of Berlin go forward on Sunday.
START_MS = unix_ms(datetime(2027, 3, 26, 12, tzinfo=UTC))
DAILY = {"by": "cron", "cron": "0 9 * * *", "timezone": "Europe/Berlin"}
FORM = {
    "name": "shop/eu/report", "topic": "shop/eu/reports", **DAILY,
    "kind": "json", "payload": '{"a": 1}', "key": "daily", "spread": "",
}  # fmt: skip
PATH = "/schedules/shop/eu/report"


def _from_new_york(visitor: Visitor) -> None:
    visitor.http.cookies.set("escapement_zone", "America/New_York")


async def test_schedule_is_created_run_and_listed(mock_clock: trio.testing.MockClock) -> None:
    """B14: its page has the times in words and both zones, and the messages that it published."""
    async with testing.start(start_ms=START_MS) as world, visiting(world) as visitor:
        _from_new_york(visitor)
        wrong = await visitor.send("/schedules/new", FORM | {"cron": "0 25 * * *"})
        assert wrong.status_code == 400
        assert "is not a cron expression (Bad hour)" in text_of(wrong)
        assert 'value="0 25 * * *"' in wrong.text
        assert "&#34;a&#34;: 1" in wrong.text, "the payload is lost"

        shown = text_of(await visitor.send("/schedules/new", FORM))
        assert "shop/eu/report is created." in shown
        assert "At 09:00 0 9 * * * in Europe/Berlin" in shown
        # One hour of Sunday is missing in Berlin.
        assert "Sat 27 Mar 2027 09:00:00 CET Sat 27 Mar 2027 04:00:00" in shown
        change = "Sun 28 Mar 2027 09:00:00 CEST the clocks go forward by 1 h before this"
        assert f"{change} Sun 28 Mar 2027 03:00:00" in shown
        assert shown.count("the clocks") == 1

        await world.clock.advance(days=2)
        shown = text_of(await visitor.send(f"{PATH}/actions/run_now", {"reason": "a test"}))
        assert "has published a message" in shown
        await world.clock.advance(seconds=1)
        answer = await visitor.get(PATH)
        for offset in range(3):
            assert f'href="/messages/shop/eu/reports@{offset}"' in answer.text
        assert "shop/eu/reports@2 run now" in text_of(answer)
        assert "All 3 messages of the topic were searched." in text_of(answer)

        shown = await visitor.text("/schedules?namespace=shop/eu&state=active")
        assert "shop/eu/report At 09:00" in shown
        assert "1 of 1 schedules" in shown
        assert "no such schedules" in await visitor.text("/schedules?state=paused")


async def test_form_shows_the_occurrences_that_the_broker_will_publish(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: before the schedule is saved, and for a change of one that exists."""
    async with testing.start(start_ms=START_MS) as world, visiting(world) as visitor:
        answer = await visitor.http.get(
            "/schedules/preview", params=DAILY, headers={"hx-request": "true"}
        )
        assert "<html" not in answer.text
        shown = text_of(answer)
        without_script = text_of(await visitor.send("/schedules/new", FORM | {"preview": "true"}))
        every = {"by": "every", "every": "90m", "name": "pulse", "topic": "beats"}
        await visitor.send("/schedules/new", every)
        await world.clock.advance(minutes=100)
        again = {"by": "every", "every": "90m"}
        kept = await visitor.http.get("/schedules/public/default/pulse/preview", params=again)
        await visitor.send("/schedules/new", FORM)
        async with world.connect() as broker:
            coming = await broker.schedules.next("shop/eu/report", 5)
            assert len(coming) == 5
            for at in coming:
                assert f"{at:%a %d %b %Y %H:%M:%S}" in shown
                assert f"{at:%a %d %b %Y %H:%M:%S}" in without_script
            (at,) = await broker.schedules.next("pulse", 1)
            assert f"Every 90 min In UTC, your zone {at:%a %d %b %Y %H:%M:%S}" in text_of(kept)


async def test_only_changed_settings_are_sent(mock_clock: trio.testing.MockClock) -> None:
    """B14: an edit of the spread changes neither the interval nor payload and key."""
    form = {"by": "every", "every": "1h", "name": "pulse", "topic": "beats"}
    path = "/schedules/public/default/pulse"
    async with testing.start(start_ms=START_MS) as world, visiting(world) as visitor:
        await visitor.send("/schedules/new", form | {"payload": "tick", "key": "k"})
        await world.clock.advance(minutes=40)
        shown = (await visitor.get(f"{path}/edit")).text
        assert 'name="every" value="1h"' in shown
        assert "is as it was" in text_of(await visitor.send(f"{path}/edit", form))
        changed = await visitor.send(f"{path}/edit", form | {"spread": "1s", "missed": "all"})
        assert "is changed" in text_of(changed)
        async with world.connect() as broker:
            schedule = await broker.schedules.get("pulse")
            assert unix_ms(schedule.coming[0]) == START_MS + 3_600_000
            assert schedule.spread is not None
            assert schedule.missed == "all"
            await world.clock.advance(hours=1)
            (page,) = [page async for page in broker.read("beats")]
            assert [(one.payload, one.key) for one in page] == [(b"tick", "k")]

            cron = form | DAILY | {"content": "true", "payload": "tock", "key": ""}
            await visitor.send(f"{path}/edit", cron)
            await visitor.send(f"{path}/actions/run_now", {})
            await world.clock.advance(seconds=1)
            (page,) = [page async for page in broker.read("beats", 1)]
            assert [(one.payload, one.key) for one in page] == [(b"tock", None)]
            assert (await broker.schedules.get("pulse")).timezone == "Europe/Berlin"


async def test_history_is_found_before_many_later_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the log is searched where the last occurrence was published."""
    async with testing.start(start_ms=START_MS) as world, visiting(world) as visitor:
        async with world.connect() as broker:
            # In some zones, this is after the last year that pages can show.
            until = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
            await broker.schedules.create("daily", "busy", cron="0 13 * * *", until=until)
            await world.clock.advance(hours=2)
            producer = await broker.producer("busy")
            for _ in range(3):
                await producer.send_many([b"x"] * 1000)
            answer = await visitor.get("/schedules/public/default/daily")
            assert 'href="/messages/public/default/busy@0"' in answer.text
            assert "250 messages of the topic were searched" in text_of(answer)
            assert "There may be others." in text_of(answer)


async def test_schedule_is_paused_resumed_and_deleted(mock_clock: trio.testing.MockClock) -> None:
    """B14: a deletion is confirmed by the name."""
    async with testing.start(start_ms=START_MS) as world, visiting(world) as visitor:
        await visitor.send("/schedules/new", FORM)
        assert "paused Edit" in text_of(await visitor.send(f"{PATH}/actions/pause", {}))
        assert "active Edit" in text_of(await visitor.send(f"{PATH}/actions/resume", {}))
        answer = await visitor.send(f"{PATH}/actions/explode", {})
        assert "'explode' is not an action" in text_of(answer)
        answer = await visitor.send(f"{PATH}/delete", {"name": "report"})
        assert "Nothing was deleted." in text_of(answer)
        async with world.connect() as broker:
            assert len(await broker.schedules.list()) == 1
            await visitor.send(f"{PATH}/delete", {"name": "shop/eu/report"})
            assert await broker.schedules.list() == []


async def test_viewer_is_offered_no_changes(mock_clock: trio.testing.MockClock) -> None:
    """B14: and a form that is sent anyway is refused by the broker."""
    async with testing.start(start_ms=START_MS) as world:
        root = await begin(world)
        async with connected(world, root) as broker, visiting(world, root.text) as visitor:
            await visitor.send("/schedules/new", FORM)
            viewer = await new_token(broker, "vic")
            await broker.admin("grants.add", role="vic", pattern="*", actions=["peek"])
            async with visiting(world, viewer.text) as looking:
                shown = await looking.text(PATH)
                assert "At 09:00" in shown
                for offered in ("Edit", "Pause", "Run now", "Delete"):
                    assert offered not in shown
                assert "New schedule" not in await looking.text("/schedules")
                for form in ("/schedules/new", f"{PATH}/edit"):
                    assert "You may not" in await looking.text(form)
                    assert '<form method="post">' not in (await looking.get(form)).text
                answer = await looking.send(f"{PATH}/actions/pause", {})
                assert answer.status_code == 403
            assert (await broker.schedules.get("shop/eu/report")).state == "active"
