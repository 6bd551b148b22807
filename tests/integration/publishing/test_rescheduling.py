"""Tests of rescheduling: a message is delivered at its old or its new due time, never at both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    Disconnected,
    InvalidRequest,
    OutcomeUnknown,
    StorageUnavailable,
)
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import arrived
from support.database.outages import Outage
from support.faults.dying_brokers import lose_index
from support.faults.held_calls import COMMIT, Held
from support.messages import numbered_messages
from support.messages.numbered_messages import everything, statuses
from support.storage.commit_pipelines import FaultyEngine, Once

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
PATIENT = BrokerConfig(ack_wait_ms=30 * 86_400_000, seed=0)
READ = "LogReader._published"
T = TypeVar("T")
TWO_AT_ONCE = replace(PATIENT, limits=BrokerLimits(unacked_messages=2))
SMALL = replace(
    PATIENT, limits=BrokerLimits(ready_messages=8, unacked_messages=3, window_messages=16)
)


# Messages have keys, because a relocated message must keep its key.
publish = partial(numbered_messages.publish, keyed=True)


class Counting(Held):
    """Held calls that are also counted, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        self.calls[getattr(function, "__qualname__", "")] += 1
        return await super().__call__(function, *arguments)


# -- delivery and statuses -------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
async def test_rescheduled_message_is_delivered_only_at_its_new_time(
    mock_clock: MockClock, on_disk: bool
) -> None:
    """B1: to a later, earlier or absolute time, or now. Other messages keep their due time."""
    async with testing.start() as world, world.connect() as broker:
        receipts = await publish(broker, 6, "s", delay=HOUR)
        if on_disk:
            await world.checkpoint()
        assert (await broker.reschedule(receipts[0], delay=DAY)).done.all()
        assert (await broker.reschedule([1, 2], delay=(30, "minutes"), topic="t")).done.all()
        at = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) + 2 * HOUR
        assert (await broker.reschedule(np.array([3]), at=at, topic="t")).done.all()
        assert (await broker.run_now([4], topic="t")).done.all()
        assert await everything(broker, "s") == [4]
        if on_disk:
            await world.checkpoint()
        for wait, expected in [(30, [1, 2]), (30, [5]), (60, [3]), (22 * 60, [0])]:
            await world.clock.advance(minutes=wait - 0.1)
            assert await everything(broker, "s") == []
            await world.clock.advance(minutes=0.1)
            assert await everything(broker, "s") == expected
        await world.clock.advance(days=2)
        assert await everything(broker, "s") == []


async def test_message_rescheduled_back_and_forth_is_delivered_once(mock_clock: MockClock) -> None:
    """B1: the last reschedule wins, and no old place of the message counts."""
    async with testing.start() as world, world.connect() as broker:
        await publish(broker, 2, "s", delay=HOUR)
        start = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
        for hours in (3, 1, 2, 1):
            moved = await broker.reschedule([1], at=start + hours * HOUR, topic="t")
            assert moved.done.all()
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0, 1]
        await world.clock.advance(hours=3)
        assert await everything(broker, "s") == []


async def test_reschedule_reports_a_status_for_each_message(mock_clock: MockClock) -> None:
    """B1: a delivered message stays delivered."""
    async with testing.start(config=TWO_AT_ONCE) as world, world.connect() as broker:
        await publish(broker, 4, "a", "b")
        await broker.cancel([3], topic="t")
        async with broker.consumer("t", "a") as at_a:
            assert [m.offset for m in await arrived(at_a)] == [0, 1]
            async with broker.consumer("t", "b") as at_b:
                assert [m.offset for m in await arrived(at_b)] == [0, 1]
            outcomes = await broker.reschedule([0, 2, 3, 9], delay=HOUR, topic="t")
            assert statuses(outcomes) == [
                AmendStatus.DELIVERED,
                AmendStatus.DONE,
                AmendStatus.CANCELLED,
                AmendStatus.UNKNOWN,
            ]
            assert [one.handed for one in outcomes] == [("a", "b"), (), (), ()]
            await at_a.ack([0, 1], durable=True)
            assert await arrived(at_a) == []
        assert await everything(broker, "b") == [0, 1]
        await world.clock.advance(hours=1)
        assert await everything(broker, "a") == [2]
        assert await everything(broker, "b") == [2]


async def test_reschedule_leaves_a_message_in_retry_at_its_old_time(mock_clock: MockClock) -> None:
    """B1: the message is in retry for a and rescheduled for b, across two checkpoints."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 2, "a", "b")
        async with broker.consumer("t", "a") as inbox:
            assert len(await arrived(inbox)) == 2
            await inbox.nack([1], delay=HOUR)
            (outcome,) = await broker.reschedule([1], delay=DAY, topic="t")
            assert outcome.done
            assert outcome.handed == ("a",)
            await world.checkpoint()
            await world.checkpoint()
            await world.clock.advance(hours=1)
            assert [m.offset for m in await arrived(inbox)] == [1]
        assert await everything(broker, "b") == [0]
        await everything(broker, "a")
        await world.clock.advance(hours=23)
        assert await everything(broker, "b") == [1]
        assert await everything(broker, "a") == []


async def test_ready_messages_and_backlog_are_rescheduled(
    mock_clock: MockClock,
) -> None:
    """B1: ready messages, and messages beyond the read position."""
    async with testing.start(config=SMALL) as world, world.connect() as broker:
        await publish(broker, 40, "s")
        async with broker.consumer("t", "s") as inbox:
            assert [message.offset for message in await arrived(inbox)] == [0, 1, 2]
            outcomes = await broker.reschedule(np.arange(1, 40, 2), delay=HOUR, topic="t")
            moved = set(outcomes.offsets[outcomes.done].tolist())
            assert moved == set(range(3, 40, 2))
        assert sorted(await everything(broker, "s")) == sorted(set(range(40)) - moved)
        (topic,) = world.server.registry.active.values()
        topic.shared["s"].bands.normal.ready._check()
        await world.clock.advance(hours=1)
        assert sorted(await everything(broker, "s")) == sorted(moved)


async def test_new_subscription_gets_a_rescheduled_message_at_its_new_time(
    mock_clock: MockClock,
) -> None:
    """B1: from the index and from the log. Ordered subscriptions ignore due times."""
    async with testing.start() as world, world.connect() as broker:
        await publish(broker, 3, delay=HOUR)
        assert (await broker.reschedule([1], delay=2 * HOUR, topic="t")).done.all()
        await broker.admin("subscriptions.create", topic="t", subscription="late")
        assert await everything(broker, "log", position="earliest", kind="exclusive") == [0, 1, 2]
        await world.clock.advance(hours=1)
        assert await everything(broker, "late") == [0, 2]
        assert await everything(broker, "all", position="earliest") == [0, 2]
        await world.clock.advance(hours=1)
        assert await everything(broker, "late") == [1]
        assert await everything(broker, "all") == [1]
        await world.checkpoint()
        assert await everything(broker, "again", position="earliest") == [0, 2, 1]


async def test_refused_due_times_change_nothing(mock_clock: MockClock) -> None:
    """B1, P2: disabled delays, a delay above the maximum, no time at all."""
    async with testing.start() as world, world.connect() as broker:
        await publish(broker, 2, "s", delay=HOUR)
        with pytest.raises(InvalidRequest):
            await broker.reschedule([0], topic="t")
        with pytest.raises(DelayTooLong):
            await broker.reschedule([0], delay=timedelta(days=100_000), topic="t")
        await broker.admin("namespaces.disable_delayed_message", namespace="public/default")
        with pytest.raises(DelaysDisabled):
            await broker.reschedule([0], delay=HOUR, topic="t")
        assert (await broker.run_now([1], topic="t")).done.all()
        assert await everything(broker, "s") == [1]
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0]


# -- races -----------------------------------------------------------------------------------


async def test_message_that_falls_due_during_its_reschedule_is_withheld(
    mock_clock: MockClock,
) -> None:
    """B1: the old due time passes between the decision and the commit."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        await publish(broker, 3, "s", delay=HOUR)
        async with trio.open_nursery() as nursery:
            outcomes: list[escapement.Outcomes] = []

            async def move() -> None:
                outcomes.append(await broker.reschedule([1], delay=DAY, topic="t"))

            with held.hold(COMMIT):
                nursery.start_soon(move)
                await held.reached()
                async with broker.consumer("t", "s") as inbox:
                    await world.clock.advance(seconds=0)
                    (topic,) = world.server.registry.active.values()
                    assert len(topic.amendments.withheld) == 1
                    del inbox
        assert outcomes[0].done.all()
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0, 2]
        await world.clock.advance(days=1)
        assert await everything(broker, "s") == [1]


async def test_message_cancelled_during_its_reschedule_is_never_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: the cancel takes effect after the reschedule."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        await publish(broker, 2, "s", delay=HOUR)
        async with trio.open_nursery() as nursery:
            answers: list[escapement.Outcomes] = []

            async def move() -> None:
                answers.append(await broker.run_now([1], topic="t"))

            async def cancel() -> None:
                answers.append(await broker.cancel([1], topic="t"))

            with held.hold(COMMIT):
                nursery.start_soon(move)
                await held.reached()
                nursery.start_soon(cancel)
                await world.clock.settle()
        assert all(answer.done.all() for answer in answers)
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0]


async def test_later_of_two_concurrent_reschedules_wins(mock_clock: MockClock) -> None:
    """B1: the second reschedule waits for the first."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        await publish(broker, 2, "s", delay=HOUR)
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                for hours in (2, 3):
                    nursery.start_soon(
                        lambda h=hours: broker.reschedule([1], delay=h * HOUR, topic="t")
                    )
                    await held.reached()
                    await world.clock.settle()
        await world.clock.advance(hours=2)
        assert await everything(broker, "s") == [0]
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [1]


# -- faults ----------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["none", "before", "between", "after"])
@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_new_due_times_and_deliveries_survive_a_crash(
    mock_clock: MockClock, checkpoint: str, index: str
) -> None:
    """B1, invariants 7 and 10: every reported outcome holds, for each subscription."""
    async with testing.start(config=TWO_AT_ONCE) as world:
        async with world.connect() as broker:
            await publish(broker, 5, "a", "b")
            if checkpoint == "before":
                await world.checkpoint()
            async with broker.consumer("t", "a") as inbox:
                assert [m.offset for m in await arrived(inbox)] == [0, 1]
                outcomes = await broker.reschedule([1, 2], delay=HOUR, topic="t")
                if checkpoint == "between":
                    await world.checkpoint()
                outcomes = await broker.reschedule([1, 2], delay=2 * HOUR, topic="t")
                assert [one.handed for one in outcomes] == [("a",), ()]
                if checkpoint == "after":
                    await world.checkpoint()
                    await world.checkpoint()
                await world.crash()
        if index == "lost":
            lose_index(world)
        await world.restart()
        async with world.connect() as broker:
            assert sorted(await everything(broker, "a")) == [0, 1, 3, 4]
            assert await everything(broker, "b") == [0, 3, 4]
            await world.clock.advance(hours=1.9)
            assert await everything(broker, "b") == []
            assert (await broker.reschedule([2], delay=3 * HOUR, topic="t")).done.all()
            await world.clock.advance(hours=0.1)
            assert await everything(broker, "a") == []
            assert await everything(broker, "b") == [1]
            await world.clock.advance(hours=3)
            assert await everything(broker, "a") == [2]
            assert await everything(broker, "b") == [2]


async def test_refused_reschedule_keeps_the_old_due_time(mock_clock: MockClock) -> None:
    """B1: the database becomes read-only before the commit, without later traffic."""
    outage = Outage()
    patient = Settings(heartbeat_s=None, request_timeout_s=86_400)
    async with (
        testing.start(engine=outage.engine) as world,
        world.connect(settings=patient) as broker,
    ):
        await publish(broker, 30, "s", delay=HOUR)
        outage.read_only()
        with pytest.raises(StorageUnavailable):
            await broker.reschedule(np.arange(5, 30), delay=DAY, topic="t")
        outage.over()
        await world.clock.advance(hours=1)
        assert sorted(await everything(broker, "s")) == list(range(30))


async def test_an_answer_waits_for_a_commit_whose_reply_was_lost(mock_clock: MockClock) -> None:
    """B1: the outcome is withheld until the commit is confirmed by reading it back."""
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await publish(broker, 3, "s", delay=HOUR)
        lost = Once("commit", OutcomeUnknown("the reply was lost"))
        engine.after = lost
        lost.arm()
        assert (await broker.reschedule([1], delay=DAY, topic="t")).done.all()
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0, 2]
        await world.clock.advance(days=1)
        assert await everything(broker, "s") == [1]


async def test_crash_before_the_commit_keeps_the_old_due_time(mock_clock: MockClock) -> None:
    """B1: the client gets no answer and can repeat its request."""
    held = Held()
    async with testing.start(run=held) as world:
        async with world.connect() as broker:
            await publish(broker, 2, "s", delay=HOUR)
            async with trio.open_nursery() as nursery:
                crashed = trio.Event()

                async def ask() -> None:
                    with pytest.raises(Disconnected):
                        await broker.reschedule([0], delay=DAY, topic="t")

                async def crash() -> None:
                    await world.crash()
                    crashed.set()

                with held.hold(COMMIT):
                    nursery.start_soon(ask)
                    await held.reached()
                    nursery.start_soon(crash)
                    await world.clock.settle()
                await crashed.wait()
                nursery.cancel_scope.cancel()
        await world.restart()
        async with world.connect() as broker:
            await world.clock.advance(hours=1)
            first = await everything(broker, "s")
            await world.clock.advance(days=1)
            assert sorted(first + await everything(broker, "s")) == [0, 1]


async def test_concurrent_reschedules_share_reads_and_commits(
    mock_clock: MockClock,
) -> None:
    """B1: requests that arrive during a read share the next read and the next commit."""
    count = 300
    counting = Counting()
    async with testing.start(config=PATIENT, run=counting) as world, AsyncExitStack() as stack:
        # A connection allows 64 requests at a time.
        clients = [await stack.enter_async_context(world.connect()) for _ in range(5)]
        broker = clients[0]
        await publish(broker, count, "s", delay=2 * DAY)
        statuses: Counter[AmendStatus] = Counter()

        async def move(offset: int) -> None:
            hours = 1 + offset % 7
            client = clients[offset % len(clients)]
            outcomes = await client.reschedule([offset], topic="t", delay=hours * HOUR)
            statuses.update(outcome.status for outcome in outcomes)

        counting.calls.clear()
        async with trio.open_nursery() as nursery:
            with counting.hold(READ):
                nursery.start_soon(move, 0)
                await counting.reached()
                for offset in np.random.default_rng(1).permutation(np.arange(1, count + 8)):
                    nursery.start_soon(move, int(offset))
                await trio.testing.wait_all_tasks_blocked()
        assert statuses == {AmendStatus.DONE: count, AmendStatus.UNKNOWN: 8}
        assert counting.calls[READ] <= 4
        assert counting.calls[COMMIT] <= 6
        (topic,) = world.server.registry.active.values()
        assert len(topic.amendments.moves) == count
        order = []
        for _ in range(7):
            await world.clock.advance(hours=1)
            order += await everything(broker, "s", permits=1000)
        assert order == sorted(range(count), key=lambda offset: (offset % 7, offset))


async def test_successive_reschedules_read_their_log_row_once(mock_clock: MockClock) -> None:
    """B1: a log row that was read stays in memory for the next request."""
    counting = Counting()
    async with testing.start(config=PATIENT, run=counting) as world, world.connect() as broker:
        await publish(broker, 20, "s", delay=2 * DAY)
        counting.calls.clear()
        for offset in range(19, -1, -1):
            (outcome,) = await broker.reschedule([offset], topic="t", delay=HOUR * (1 + offset))
            assert outcome.status is AmendStatus.DONE
        assert counting.calls[READ] == 1
        assert counting.calls[COMMIT] == 20
        for offset in range(20):
            await world.clock.advance(hours=1)
            assert await everything(broker, "s") == [offset]


async def test_cancelling_one_of_several_shared_reads_leaves_the_others(
    mock_clock: MockClock,
) -> None:
    """B1: also if the request that reads for all is cancelled."""
    held = Held()
    async with testing.start(config=PATIENT, run=held) as world, world.connect() as broker:
        await publish(broker, 5, "s", delay=DAY)
        (topic,) = world.server.registry.active.values()
        reader, found = world.server.services.reader, {}
        scopes = [trio.CancelScope() for _ in range(5)]

        async def look(offset: int) -> None:
            with scopes[offset]:
                answer, count = await reader.published(
                    topic.id, np.array([offset]), topic.amendments.moves, 0
                )
                found[offset] = answer.offsets.tolist(), answer.batch.payloads.to_list(), count

        for cancelled in ([0], [1], [0, 1, 3], [4], [0, 1, 2, 3, 4]):
            found.clear()
            scopes = [trio.CancelScope() for _ in range(5)]
            async with trio.open_nursery() as nursery:
                with held.hold(READ):
                    for offset in range(5):
                        nursery.start_soon(look, offset)
                        await trio.testing.wait_all_tasks_blocked()
                    for offset in cancelled:
                        scopes[offset].cancel()
                    await trio.testing.wait_all_tasks_blocked()
            kept = {n: ([n], [b"%d" % n], 1) for n in range(5) if n not in cancelled}
            assert {n: found[n] for n in kept} == kept


async def test_message_run_in_the_first_millisecond_of_a_subscription_is_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: a new subscription skips messages due in that millisecond, but not a rescheduled one."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("t")
        receipt = await producer.send(b"x", delay=HOUR)
        async with broker.consumer("t", "s") as inbox:
            assert (await broker.run_now(receipt)).done.all()
            await world.clock.advance(seconds=1)
            assert [message.value for message in await arrived(inbox)] == [b"x"]
