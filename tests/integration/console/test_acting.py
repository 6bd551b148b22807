"""Cancel, reschedule, run now and send back: one message, a selection, or all that match."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio.testing

from escapement import testing
from escapement.console.pages.act import MOST_SELECTED
from escapement.testing import World, arrived
from escapement.testing.clock import START_MS
from support.console.visitor import Visitor, text_of, visiting
from support.roles import begin, connected

ORDERS = "public/default/orders"
HOUR_MS = 3_600_000


async def ended(world: World, visitor: Visitor, path: str) -> str:
    """Wait until a job has ended, and return the text of its page."""
    for _ in range(50):
        text = await visitor.text(path)
        if "done " in text and "Stop the job" not in text:
            return text
        await world.clock.advance(seconds=1)
    raise AssertionError(text)


async def test_selection_is_cancelled_with_an_outcome_for_each(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14, B17: a count and the names first; then each outcome in words, and a row of the log."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker, visiting(world, root.text) as visitor:
            await broker.admin("subscriptions.create", topic="orders", subscription="s")
            producer = await broker.producer("orders")
            await producer.send_many([b""] * 4, delay=["1h", "2h", "3h", "4h"])
            await broker.cancel([1], topic="orders")
            sent: dict[str, Any] = {
                "action": "cancel",
                "id": [f"{ORDERS}@{n}" for n in (0, 1, 3)] + [f"{ORDERS}@99"],
                "back": "javascript:alert(1)",
            }
            text = text_of(await visitor.send("/act", sent))
            assert "Cancel 4 messages" in text
            assert f"{ORDERS}@3" in text
            # Nothing has changed yet, and does not without the box that confirms it.
            unsure = await visitor.send("/act/now", sent)
            assert (unsure.status_code, "Tick the box" in unsure.text) == (400, True)
            assert (await broker.show(f"{ORDERS}@0")).state == "to_be_fired"
            sure = {"sure": "true", "reason": "ticket 4711"}
            answer = await visitor.send("/act/now", sent | sure)
            assert "javascript" not in answer.text
            text = text_of(answer)
            assert "Cancelled: 3, not changed: 1." in text
            assert f"{ORDERS}@0 ✓ Cancelled." in text
            assert f"{ORDERS}@99 – Not found" in text
            assert [(await broker.show(f"{ORDERS}@{n}")).state for n in range(4)] == [
                "cancelled", "cancelled", "to_be_fired", "cancelled",
            ]  # fmt: skip
            (row,) = (await broker.admin("audit.list", count=1))["actions"]
            assert (row["role"], row["reason"]) == ("root", "ticket 4711")


async def test_all_that_match_are_rescheduled_by_a_job(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the preview counts them, and the page of the job has its progress, who and why."""
    async with testing.start() as world:
        root = await begin(world)
        async with connected(world, root) as broker, visiting(world, root.text) as visitor:
            producer = await broker.producer("orders")
            delays = [timedelta(hours=n + 1) for n in range(20)]
            await producer.send_many([b""] * 20, delay=delays, keys=["a", "b"] * 10)
            sent = {"where": "orders", "key": "a", "until": str(START_MS + 10 * HOUR_MS)}
            sent |= {"action": "reschedule"}
            assert "Reschedule 5 messages" in text_of(await visitor.send("/act", sent))
            for wrong in ({}, {"delay": "1h", "at": "2027-01-01"}, {"delay": "soon"}):
                assert (await visitor.send("/act/now", sent | wrong)).status_code == 400
            visitor.http.cookies.set("escapement_zone", "Europe/Berlin")
            change = sent | {"at": "2026-12-31T23:00", "reason": "ticket 8", "spread": "10m"}
            text = text_of(await visitor.send("/act/now", change))
            assert "Reschedule: started." in text
            text = await ended(world, visitor, f"/jobs/{ORDERS}/1")
            assert "5 of 5 messages" in text
            assert "New due time Thu 31 Dec 2026 23:00:00" in text
            assert "Who root Why ticket 8" in text
            assert "Reschedule (job 1)" in await visitor.text("/jobs")
            dues_ms = [
                int((await broker.show(f"{ORDERS}@{n}")).due_at.timestamp() * 1000)
                for n in (0, 2, 4, 6, 8)
            ]
            new_ms = 1_798_754_400_000  # 31 December 2026, 22:00 UTC
            assert all(new_ms <= due_ms <= new_ms + 600_000 for due_ms in dues_ms)
            assert len(set(dues_ms)) == 5
            assert (await broker.show(f"{ORDERS}@10")).due_at.hour == 23


async def test_state_of_the_filter_bounds_what_a_job_changes(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: a job for all that are overdue does not change a message that is not yet due."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        await broker.admin("subscriptions.create", topic="orders", subscription="s")
        producer = await broker.producer("orders")
        await producer.send_many([b""] * 3, delay=["0s", "0s", "1h"])
        sent = {"action": "cancel", "where": "orders", "state": "overdue", "sure": "true"}
        assert "Cancel 2 messages" in text_of(await visitor.send("/act", sent))
        await visitor.send("/act/now", sent)
        assert "2 of 2 messages" in await ended(world, visitor, f"/jobs/{ORDERS}/1")
        assert (await broker.show(f"{ORDERS}@2")).state == "to_be_fired"


async def test_one_message_is_run_now(mock_clock: trio.testing.MockClock) -> None:
    """B14: it is delivered at once."""
    async with testing.start() as world, world.connect() as broker:
        async with broker.consumer("orders", "s") as inbox, visiting(world) as visitor:
            producer = await broker.producer("orders")
            await producer.send_many([b"first", b"second"], delay="1h")
            sent = {"action": "run_now", "id": f"{ORDERS}@1"}
            assert "Run now 1 message" in text_of(await visitor.send("/act", sent))
            assert "✓ Due now." in text_of(await visitor.send("/act/now", sent))
            await world.clock.settle()
            assert [one.value for one in await arrived(inbox)] == [b"second"]


async def test_dead_letters_that_match_are_sent_back_by_a_job(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B14: the same form and the same job as for messages of a topic."""
    async with testing.start() as world, world.connect() as broker:
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", topic="orders", subscription="s", policy=policy)
        producer = await broker.producer("orders")
        await producer.send_many([b"one", b"two"], keys=["a", "b"])
        async with broker.consumer("orders", "s") as inbox, visiting(world) as visitor:
            await inbox.nack(await arrived(inbox))
            await world.clock.advance(seconds=5)
            sent = {"action": "redrive", "where": "orders", "subscription": "s", "key": "b"}
            text = text_of(await visitor.send("/act", sent))
            assert "Send back 1 message" in text
            assert "Dead letters of s" in text
            assert "started" in text_of(await visitor.send("/act/now", sent))
            assert "1 of 1 messages" in await ended(world, visitor, f"/jobs/{ORDERS}/1")
            await world.clock.advance(seconds=5)
            assert [one.value for one in await arrived(inbox)] == [b"two"]


async def test_running_job_is_stopped(mock_clock: trio.testing.MockClock) -> None:
    """B14: a stopped job changes no further message."""
    async with testing.start() as world, world.connect() as broker, visiting(world) as visitor:
        producer = await broker.producer("orders")
        await producer.send_many([b""] * 10, delay="1h")
        change = await broker.bulk.cancel("orders", everything=True)
        page = f"/jobs/{ORDERS}/{change.id}"
        assert "Stop the job" in await visitor.text(page)
        sent = {"topic": ORDERS, "id": str(change.id), "reason": "mistake"}
        text = text_of(await visitor.send("/jobs/stop", sent))
        assert "The job has stopped." in text
        assert "Stop the job" not in text
        await world.clock.advance(seconds=30)
        assert (await broker.bulk.show("orders", change.id)).done == 0
        change = await broker.bulk.cancel("orders", everything=True)
        await ended(world, visitor, f"/jobs/{ORDERS}/{change.id}")
        text = text_of(await visitor.send("/jobs/stop", sent | {"id": str(change.id)}))
        assert "The job had ended before." in text
        assert (await visitor.get(f"/jobs/{ORDERS}/99")).status_code == 404


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"action": "cancel"}, "Select at least one message."),
        ({"action": "purge", "id": "orders@1"}, "action"),
        ({"action": "cancel", "id": "orders"}, "is not a message id"),
        ({"action": "cancel", "id": ["orders@1"] * (MOST_SELECTED + 1)}, "at most 1,000"),
        ({"action": "cancel", "where": "orders", "state": "in-flight"}, "one by one"),
        ({"action": "cancel", "where": "shop/eu"}, "is not a topic"),
    ],
)
async def test_form_that_names_no_messages_is_refused(
    mock_clock: trio.testing.MockClock, sent: dict[str, Any], said: str
) -> None:
    """B14: the page names the mistake, and changes nothing."""
    async with testing.start() as world, visiting(world) as visitor:
        for path in ("/act", "/act/now"):
            answer = await visitor.send(path, sent | {"sure": "true"})
            assert answer.status_code == 400
            assert said in text_of(answer)
