"""Bulk changes in a whole broker: filters, progress, restarts, stops and bounds (B13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from trio.testing import MockClock

import escapement
from escapement import BulkChange, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.clock import moment
from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from escapement.spread import places_ms, seeds
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.database.outages import Outage

SLICE = 10
HOUR_MS = 3_600_000
CONFIG = BrokerConfig(
    ack_wait_ms=10**11,
    limits=BrokerLimits(bulk_slice_messages=SLICE, bulk_changes=2, bulk_ended=3, bulk_messages=500),
    seed=0,
)


async def ended(world: World, broker: escapement.Broker, change: BulkChange) -> BulkChange:
    while not change.has_ended:
        await world.clock.advance(ms=10)
        change = await broker.bulk.show(change.topic, change.id)
    return change


async def under_way(world: World, broker: escapement.Broker, change: BulkChange) -> BulkChange:
    """Return a bulk change when it has handled some of its messages, and not all."""
    while not change.handled:
        await world.clock.advance(ms=10)
        change = await broker.bulk.show(change.topic, change.id)
    assert not change.has_ended
    return change


async def due_ms(broker: escapement.Broker, topic: str = "t") -> dict[int, int]:
    """Return the due times of the pending messages by offset."""
    found: dict[int, int] = {}
    async for one in broker.peek(topic, count=10_000):
        found[one.id.offset] = round(one.due_at.timestamp() * 1000)
    return found


async def published(broker: escapement.Broker, count: int = 100, **options: Any) -> None:
    await (await broker.producer("t")).send_many([b"x"] * count, delay="1h", **options)


async def test_reschedule_goes_on_after_crashes_and_gives_each_message_its_place(
    engine: Engine, mock_clock: MockClock
) -> None:
    """B13, B12: each message is moved once, to a time from the start, however often it crashes."""
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        await published(broker)
        # Before the old times: the new place of a message lies ahead and behind in the order.
        change = await broker.bulk.reschedule(
            "t", everything=True, delay="30m", spread="1h", reason="calm"
        )
        start_ms = world.clock.now_ms()
        await published(broker, 7)
        for _ in range(3):
            change = await under_way(world, broker, change)
            handled = change.handled
            await world.crash()
            await world.restart()
            await world.clock.advance(seconds=2)
            change = await broker.bulk.show("t", change.id)
            assert change.handled >= handled
        change = await ended(world, broker, change)
        assert (change.state, change.messages, change.done) == ("done", 100, 100)
        assert (change.reason, change.spread) == ("calm", timedelta(hours=1))
        assert change.new_due == moment(start_ms + HOUR_MS // 2)
        found = await due_ms(broker)
        places = places_ms(seeds("public/default/t", np.arange(100)), HOUR_MS)
        expected = start_ms + HOUR_MS // 2 + places
        assert [found[offset] for offset in range(100)] == expected.tolist()
        assert {found[offset] for offset in range(100, 107)} == {start_ms + HOUR_MS}


async def test_redrive_sends_each_dead_letter_once_although_the_broker_crashes(
    engine: Engine, mock_clock: MockClock
) -> None:
    """B13, V1: a repeated slice sends nothing twice. Filters apply to the dead letters."""
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        names = {"topic": "t", "subscription": "s"}
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", **names, policy=policy)
        producer = await broker.producer("t")
        await producer.send_many(
            [b"%d" % n for n in range(60)], keys=["odd" if n % 2 else "even" for n in range(60)]
        )
        async with broker.consumer("t", "s") as inbox:
            await inbox.nack([message.id for message in await arrived(inbox)])
            await world.clock.advance(seconds=3)
        assert (await broker.bulk.preview("t", "s", everything=True)).messages == 60
        change = await broker.bulk.redrive("t", "s", key="odd")
        change = await under_way(world, broker, change)
        await world.crash()
        await world.restart()
        await world.clock.advance(seconds=2)
        change = await ended(world, broker, change)
        assert (change.messages, change.done + change.skipped) == (30, 30)
        assert change.done >= 30 - SLICE
        await world.clock.advance(seconds=3)
        async with broker.consumer("t", "s") as inbox:
            again = await arrived(inbox)
            await inbox.ack([message.id for message in again])
        assert sorted(int(message.payload) for message in again) == list(range(1, 60, 2))
        assert (await broker.admin("dlq.count", **names))["dead_letters"] == 30


async def test_stopped_bulk_change_changes_nothing_more(mock_clock: MockClock) -> None:
    """B13: also after a restart."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await published(broker)
        change = await under_way(world, broker, await broker.bulk.cancel("t", everything=True))
        assert change.done == SLICE, "there is a rest between two slices"
        change = await broker.bulk.stop("t", change.id)
        assert change.state == "stopped"
        await world.clock.advance(seconds=10)
        await world.stop()
        await world.restart()
        await world.clock.advance(seconds=10)
        assert await broker.bulk.show("t", change.id) == change
        assert await broker.bulk.stop("t", change.id) == change
        assert len(await due_ms(broker)) == 100 - change.done


@pytest.mark.parametrize("reply", range(1, 12))
async def test_bulk_change_continues_after_an_outage_and_a_lost_reply(
    reply: int, mock_clock: MockClock
) -> None:
    """B13, Q8: it waits while the database is unreachable, and counts each message once."""
    outage = Outage()
    async with testing.start(config=CONFIG, engine=outage.engine) as world:
        async with world.connect() as broker:
            await published(broker)
            outage.lose_reply(reply + 2)  # the first two belong to the audit log and to the new row
            change = await broker.bulk.reschedule("t", everything=True, delay="2h")
            for _ in range(reply):
                await world.clock.advance(ms=5)
            outage.unreachable()
            for _ in range(5):
                await world.clock.advance(seconds=1)
            waiting = await broker.bulk.show("t", change.id)
            assert not waiting.has_ended
            outage.over()
            for _ in range(5):
                await world.clock.advance(seconds=1)
            change = await ended(world, broker, change)
            assert (change.state, change.messages, change.done) == ("done", 100, 100)
            assert change.new_due is not None
            new_ms = round(change.new_due.timestamp() * 1000)
            assert await due_ms(broker) == dict.fromkeys(range(100), new_ms)


async def test_messages_published_after_the_start_are_not_changed(mock_clock: MockClock) -> None:
    """B13: although they arrive before the search begins."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await published(broker)
        async with world.server.services.bulk_changes._turn:
            change = await broker.bulk.cancel("t", everything=True)
            await published(broker, 5)
        change = await ended(world, broker, change)
        assert (change.messages, change.done) == (100, 100)
        assert (await due_ms(broker)).keys() == set(range(100, 105))


async def test_filters_are_those_of_a_search_and_the_preview_counts_them(
    mock_clock: MockClock,
) -> None:
    """B13: time, key and properties, and a key with a property."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        now_ms = world.clock.now_ms()
        producer = await broker.producer("t")
        for n in range(8):
            await producer.send(
                b"x", at=moment(now_ms + n * HOUR_MS), key="ab"[n % 2], properties={"n": n // 4}
            )
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        for conditions, expected in (
            ({"due_from": moment(now_ms + 5 * HOUR_MS)}, {5, 6, 7}),
            ({"due_until": moment(now_ms + 2 * HOUR_MS)}, {1}),
            ({"key": "b", "properties": {"n": 1}}, set()),
            ({"properties": {"n": 0}}, {2, 3}),
        ):
            before = await due_ms(broker)
            found = await broker.bulk.preview("t", **conditions)
            change = await ended(world, broker, await broker.bulk.cancel("t", **conditions))
            assert found.complete
            assert before.keys() - (await due_ms(broker)).keys() == expected
            assert found.messages == change.messages == change.done == len(expected)


async def test_delivered_and_cancelled_messages_are_counted_as_such(mock_clock: MockClock) -> None:
    """B13: messages that are delivered or cancelled after the start, before their slice."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 30, delay=["1h"] * 10 + ["30ms"] * 10 + ["1h"] * 10)
        async with broker.consumer("t", "s", permits=100) as inbox:
            change = await broker.bulk.run_now("t", everything=True)
            await broker.cancel(list(range(20, 25)), topic="t")
            server = world.server.services.bulk_changes
            async with server._turn:  # no slice while the messages become due
                await world.clock.advance(ms=50)
            change = await ended(world, broker, change)
            assert (change.done, change.delivered, change.skipped) == (15, 10, 5)
            assert len(await arrived(inbox)) == 25


async def test_bulk_change_of_a_deleted_topic_fails_and_spares_the_next_topic_of_the_name(
    mock_clock: MockClock,
) -> None:
    """B13."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await published(broker)
        change = await under_way(world, broker, await broker.bulk.cancel("t", everything=True))
        await broker.admin("topics.delete", topic="t")
        await broker.admin("topics.create", topic="t")
        await published(broker)
        change = await ended(world, broker, change)
        assert (change.state, change.error) == ("failed", "The topic public/default/t was deleted.")
        assert len(await due_ms(broker)) == 100


async def test_new_times_are_checked_at_the_start(mock_clock: MockClock) -> None:
    """B13, B10: with the latest time of the spread. A slice that is refused fails the change."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await published(broker)
        await broker.admin("topics.update", topic="t", policy={"max_delay_ms": "2h"})
        with pytest.raises(DelayTooLong):
            await broker.bulk.reschedule("t", everything=True, delay="1h", spread="90m")
        change = await broker.bulk.reschedule("t", everything=True, delay="1h", spread="1h")
        await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
        change = await ended(world, broker, change)
        assert change.state == "failed"
        assert "delayed messages are disabled" in (change.error or "")
        with pytest.raises(DelaysDisabled):
            await broker.bulk.run_now("t", everything=True, spread="1s")
        change = await ended(world, broker, await broker.bulk.run_now("t", everything=True))
        assert change.done == 100
        for wrong in (
            {},
            {"everything": True, "key": "k"},
            {"everything": True, "reason": "x" * 1001},
            {"properties": {"n": "x" * 20_000}},
        ):
            with pytest.raises(InvalidRequest):
                await broker.bulk.cancel("t", **wrong)
        with pytest.raises(NotFound, match="no topic"):
            await broker.bulk.cancel("nowhere", everything=True)
        with pytest.raises(NotFound, match="no bulk change 99"):
            await broker.bulk.stop("t", 99)


async def test_numbers_of_bulk_changes_and_their_messages_are_bounded(
    mock_clock: MockClock,
) -> None:
    """B13: too many are refused, those that have ended are forgotten, and no part is left."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        await published(broker)
        first = await broker.bulk.cancel("t", key="none")
        second = await broker.bulk.run_now("t", everything=True)
        with pytest.raises(LimitExceeded):
            await broker.bulk.cancel("t", everything=True)
        for change in (first, second):
            assert (await ended(world, broker, change)).state == "done"
        await published(broker, 501)
        change = await ended(world, broker, await broker.bulk.cancel("t", everything=True))
        assert change.state == "failed"
        assert "More than 500 messages match" in (change.error or "")
        assert len(await due_ms(broker)) == 501
        last = await ended(world, broker, await broker.bulk.cancel("t", key="none"))
        assert [one.id for one in await broker.bulk.list()] == [last.id, change.id, second.id]
        assert await broker.bulk.list("other/namespace") == []
        await world.stop()
        await world.restart()
        for _ in range(20):  # one step of the housekeeper in each
            await world.clock.advance(seconds=30)
        assert [one.id for one in await broker.bulk.list()] == [last.id, change.id, second.id]
        left = await world.server.services.pipeline.transact(
            lambda connection: connection.execute("SELECT COUNT(*) FROM bulk_parts").rows
        )
        assert left == [(0,)]
