"""Tests of cancelling: statuses per subscription, races with delivery, and faults."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import AmendStatus, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    Disconnected,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageReadOnly,
)
from escapement.storage.engine.sqlite import SqliteEngine
from support.database.outages import Outage
from support.faults.dying_brokers import lose_index
from support.faults.held_calls import COMMIT, FETCH, KEYS, Held, uncached
from support.messages.numbered_messages import everything, offsets, publish, statuses
from support.storage.commit_pipelines import FaultyEngine, Once

HOUR = timedelta(hours=1)
PATIENT = BrokerConfig(ack_wait_ms=86_400_000, seed=0)
TWO_AT_ONCE = replace(PATIENT, limits=BrokerLimits(unacked_messages=2))
SMALL = BrokerConfig(
    ack_wait_ms=86_400_000,
    limits=BrokerLimits(ready_messages=8, deliver_messages=3, window_messages=16),
    seed=0,
)


# -- statuses --------------------------------------------------------------------------


async def test_cancelled_message_is_never_delivered(mock_clock: MockClock) -> None:
    """B1: by receipt, id or column. The other messages are delivered when they are due."""
    async with testing.start() as world, world.connect() as broker:
        receipts = await publish(broker, 6, "s", delay=HOUR)
        one = receipts[1].id
        assert one is not None
        (by_receipt,) = await broker.cancel(receipts[0])
        (by_id,) = await broker.cancel(one)
        by_column = await broker.cancel(np.array([4, 4]), topic="t")
        assert by_receipt == escapement.Outcome(
            escapement.MessageId("public/default/t", 0), AmendStatus.DONE
        )
        assert by_id.done
        assert by_column.done.all()
        assert len(by_column) == 2
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [2, 3, 5]
        stats = await broker.admin("topics.stats", topic="t")
        assert stats["cancelled"] == 3
        assert stats["subscriptions"][0]["unacknowledged"] == 0


async def test_cancel_names_the_subscriptions_that_had_the_message(mock_clock: MockClock) -> None:
    """B1: a cancel is done if at least one subscription has not had the message."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 1, "a", "b")
        async with broker.consumer("t", "b") as inbox:
            assert await offsets(inbox) == [0]
        await publish(broker, 2)
        async with broker.consumer("t", "a") as inbox:
            assert await offsets(inbox) == [0, 1, 2]
            await inbox.ack([1], durable=True)
            outcomes = await broker.cancel([0, 1, 2, 99], topic="t")
            assert statuses(outcomes) == [
                AmendStatus.DELIVERED,
                AmendStatus.DONE,
                AmendStatus.DONE,
                AmendStatus.UNKNOWN,
            ]
            assert [one.handed for one in outcomes] == [("a", "b"), ("a",), ("a",), ()]
            assert outcomes.handed_to("b").tolist() == [True, False, False, False]
            again = await broker.cancel([0, 1, 2, 99], topic="t")
            assert statuses(again) == statuses(outcomes)
        # Messages delivered to a are redelivered to a. b gets only message 0.
        assert await everything(broker, "a") == [0, 2]
        assert await everything(broker, "b") == [0]


async def test_subscription_that_never_gets_a_message_does_not_make_it_cancellable(
    mock_clock: MockClock,
) -> None:
    """B1: a message is DELIVERED once every subscription that should get it has had it."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 2, "a")
        await publish(broker, 3, delay=HOUR)
        await broker.reschedule([3], delay=timedelta(minutes=1), topic="t")
        await world.clock.advance(minutes=2)
        async with broker.consumer("t", "a") as inbox:
            assert await offsets(inbox) == [0, 1, 3]
            await inbox.ack([0, 3], durable=True)
            # It gets messages that fall due from now on, also if they were published before.
            await broker.admin("subscriptions.create", topic="t", subscription="late")
            await broker.admin(
                "subscriptions.create", topic="t", subscription="log", kind="exclusive"
            )
            # The checkpoint removes acknowledged messages from the index.
            await world.checkpoint()
            outcomes = await broker.cancel([0, 1, 3, 4], topic="t")
            assert statuses(outcomes) == [AmendStatus.DELIVERED] * 3 + [AmendStatus.DONE]
            assert [one.handed for one in outcomes] == [("a",)] * 3 + [()]
            assert statuses(await broker.cancel([0, 1, 3, 4], topic="t")) == statuses(outcomes)
            await world.clock.advance(hours=1)
            assert await offsets(inbox) == [2]
        assert await everything(broker, "late") == [2]
        assert await everything(broker, "past", position="earliest") == [0, 1, 3, 2]


async def test_invalid_message_ids_are_refused(mock_clock: MockClock) -> None:
    """B1: the client refuses before it sends anything. An unknown topic is named."""
    async with testing.start() as world, world.connect() as broker:
        for what, topic in [
            (7, None),
            ([escapement.MessageId("a", 1), escapement.MessageId("b", 1)], None),
            (escapement.MessageId("a", 1), "b"),
            ([-1], "t"),
            (["x"], "t"),
            ("1", "t"),
            ("a@1", "b"),
        ]:
            with pytest.raises(InvalidRequest):
                await broker.cancel(what, topic=topic)  # type: ignore[arg-type]
        with pytest.raises(NotFound):
            await broker.cancel(1, topic="nowhere")
        await publish(broker, 1)
        assert len(await broker.cancel([], topic="t")) == 0


async def test_messages_are_named_by_the_text_of_their_ids(mock_clock: MockClock) -> None:
    """B1, B6, N1: one or several, wherever the client takes an id or an offset."""
    async with testing.start() as world, world.connect() as broker:
        first, second, third = [str(one.id) for one in await publish(broker, 3, delay=HOUR)]
        assert (await broker.cancel(first)).done.tolist() == [True]
        assert (await broker.cancel([second], topic="t")).done.tolist() == [True]
        assert (await broker.show(first)).state == "cancelled"
        assert [str(one.id) async for one in broker.peek("t", offset=third)] == [third]
        pages = [page.offsets.tolist() async for page in broker.read("t", second, third)]
        assert pages == [[1]]
        assert await everything(broker, "s", position=third, kind="exclusive") == [2]
        async with broker.consumer("t", "s", kind="exclusive") as inbox:
            await inbox.seek(third)
            assert await offsets(inbox) == [2]
            assert await inbox.ack(third, durable=True) == 1
            with pytest.raises(InvalidRequest, match="belongs to another topic"):
                await inbox.seek("other@2")
            with pytest.raises(InvalidRequest, match="is not a message id: write TOPIC@17"):
                await inbox.ack("2")


async def test_a_message_without_subscriptions_can_be_cancelled(mock_clock: MockClock) -> None:
    """B1: a subscription created later never gets it, at any start position."""
    async with testing.start() as world, world.connect() as broker:
        await publish(broker, 4, delay=HOUR)
        assert (await broker.cancel([0, 2], topic="t")).done.all()
        await world.checkpoint()
        await broker.admin("subscriptions.create", topic="t", subscription="late")
        await world.clock.advance(hours=1)
        assert await everything(broker, "late") == [1, 3]
        assert await everything(broker, "all", position="earliest") == [1, 3]
        assert await everything(broker, "log", position="earliest", kind="exclusive") == [1, 3]


async def test_ordered_subscription_skips_cancelled_messages(mock_clock: MockClock) -> None:
    """B1: also prefetched messages. A nacked message is redelivered."""
    async with testing.start(config=TWO_AT_ONCE) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="o", kind="failover")
        await publish(broker, 6, "s", delay=HOUR)
        async with broker.consumer("t", "o", kind="failover") as inbox:
            assert await offsets(inbox) == [0, 1]
            outcomes = await broker.cancel([1, 2, 4], topic="t")
            assert [one.handed for one in outcomes] == [("o",), (), ()]
            await inbox.nack([1])
            await inbox.ack([0], durable=True)
            got = await offsets(inbox)
        assert sorted(set(got) | set(await everything(broker, "o", kind="failover"))) == [1, 3, 5]
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0, 3, 5]


async def test_topic_deletion_frees_the_record_of_cancelled_messages(mock_clock: MockClock) -> None:
    """Invariant 9: the cursor chunks of the topic are deleted with its rows."""
    engine = SqliteEngine.in_memory()
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await publish(broker, 4, "s", delay=HOUR)
        await broker.cancel([1], topic="t")
        await world.checkpoint()
        connection = engine.connect()
        chunks = "SELECT subscription_id FROM cursor_chunks"
        assert len(connection.execute(chunks).rows) == 1
        await broker.admin("topics.delete", topic="t")
        for _ in range(60):
            await world.clock.advance(seconds=1)
        assert connection.execute(chunks).rows == []
        connection.close()


# -- races -------------------------------------------------------------------------------


async def test_message_cancelled_while_its_window_is_read_is_not_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: the read returns the message, and it is dropped when it falls due."""
    held = Held()
    async with testing.start(run=held) as world, world.connect() as broker:
        await publish(broker, 5, "s", delay=HOUR)
        await world.checkpoint()
        with held.hold(KEYS):
            await world.clock.advance(minutes=59.99)
            await held.reached()
            assert (await broker.cancel([1, 3], topic="t")).done.all()
        await world.clock.advance(minutes=1)
        assert await everything(broker, "s") == [0, 2, 4]


async def test_message_cancelled_during_a_backlog_scan_is_not_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: cancelled messages in the result of the scan are left out."""
    held = Held()
    async with testing.start(run=held, config=SMALL) as world, world.connect() as broker:
        await publish(broker, 30, "s")
        await world.checkpoint()
        async with trio.open_nursery() as nursery:
            found: list[int] = []

            async def consume() -> None:
                found.extend(await everything(broker, "s"))

            with held.hold(KEYS):
                nursery.start_soon(consume)
                await held.reached()
                outcomes = await broker.cancel(np.arange(10, 30), topic="t")
        cancelled = set(outcomes.offsets[outcomes.done].tolist())
        assert cancelled
        assert sorted(found) == sorted(set(range(30)) - cancelled)


async def test_cancel_after_the_decision_to_send_answers_delivered(
    mock_clock: MockClock,
) -> None:
    """B1: the message is delivered, and the cancel reports DELIVERED."""
    held = Held()
    config = uncached(PATIENT)
    async with testing.start(run=held, config=config) as world, world.connect() as broker:
        await publish(broker, 3, "s")
        await world.checkpoint()
        async with broker.consumer("t", "s") as inbox:
            with held.hold(FETCH):
                await held.reached()
                assert statuses(await broker.cancel([1], topic="t")) == [AmendStatus.DELIVERED]
            assert await offsets(inbox) == [0, 1, 2]


async def test_ready_message_can_be_cancelled(mock_clock: MockClock) -> None:
    """B1: ready messages are not in flight. Their space and permits go to other messages."""
    async with testing.start(config=TWO_AT_ONCE) as world, world.connect() as broker:
        await publish(broker, 30, "s")
        async with broker.consumer("t", "s") as inbox:
            assert await offsets(inbox) == [0, 1]
            outcomes = await broker.cancel(np.arange(2, 28), topic="t")
            assert outcomes.done.all()
            await inbox.ack([0, 1], durable=True)
            assert await offsets(inbox) == [28, 29]
        (topic,) = world.server.registry.active.values()
        topic.shared["s"].bands.normal.ready._check()


async def test_checkpoint_keeps_a_cancelled_message_that_is_in_retry(mock_clock: MockClock) -> None:
    """B1: the message is cancelled for b and in retry for a, so the index keeps it for a."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, 4, "a", "b")
        async with broker.consumer("t", "a") as inbox:
            assert await offsets(inbox) == [0, 1, 2, 3]
            await inbox.nack([1], delay=HOUR)
            await inbox.ack([3], durable=True)
            outcomes = await broker.cancel([1, 2, 3], topic="t")
            assert outcomes.done.all()
            await world.checkpoint()
            assert await everything(broker, "b") == [0]
            await world.checkpoint()
            await world.clock.advance(hours=1)
            assert await offsets(inbox) == [1]
        await everything(broker, "a")
        await world.checkpoint()
        (topic,) = world.server.registry.active.values()
        (dead, *_), (outdated, staying_ms) = (
            topic.retention.dead(0, 4),
            topic.retention.outdated(0, 4),
        )
        assert sorted({*dead.tolist(), *outdated.tolist()}) == [0, 1, 2, 3]
        assert set(staying_ms.tolist()) == {-1}


# -- faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoint", ["none", "before", "after"])
@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_cancellations_and_deliveries_survive_a_crash(
    mock_clock: MockClock, checkpoint: str, index: str
) -> None:
    """B1, invariants 7 and 10: every reported outcome holds, for each subscription."""
    async with testing.start(config=TWO_AT_ONCE) as world:
        async with world.connect() as broker:
            await publish(broker, 6, "a", "b")
            if checkpoint == "before":
                await world.checkpoint()
            async with broker.consumer("t", "a") as inbox:
                assert await offsets(inbox) == [0, 1]
                outcomes = await broker.cancel([1, 2, 4], topic="t")
                assert [one.handed for one in outcomes] == [("a",), (), ()]
                if checkpoint == "after":
                    await world.checkpoint()
                    await world.checkpoint()
                await world.crash()
        if index == "lost":
            lose_index(world)
        await world.restart()
        async with world.connect() as broker:
            again = await broker.cancel([1, 2, 4], topic="t")
            assert again.done.all()
            # Outcomes now name every subscription that may have had a message.
            assert "a" in again[0].handed
            assert sorted(await everything(broker, "a")) == [0, 1, 3, 5]
            assert await everything(broker, "b") == [0, 3, 5]
            assert await everything(broker, "c", position="earliest") == [0, 3, 5]


async def test_crash_before_the_commit_leaves_the_message_cancellable(
    mock_clock: MockClock,
) -> None:
    """B1: the client gets no answer and can repeat its cancel."""
    held = Held()
    async with testing.start(run=held) as world:
        async with world.connect() as broker:
            await publish(broker, 2, "s", delay=HOUR)
            async with trio.open_nursery() as nursery:
                with held.hold(COMMIT):

                    async def ask() -> None:
                        with pytest.raises(Disconnected):
                            await broker.cancel([0], topic="t")

                    nursery.start_soon(ask)
                    await held.reached()
                    crashed = trio.Event()

                    async def crash() -> None:
                        await world.crash()
                        crashed.set()

                    nursery.start_soon(crash)
                    await world.clock.settle()
                await crashed.wait()
                nursery.cancel_scope.cancel()
        await world.restart()
        async with world.connect() as broker:
            assert (await broker.cancel([0], topic="t")).done.all()
            await world.clock.advance(hours=1)
            assert await everything(broker, "s") == [1]


async def test_an_answer_waits_for_a_commit_whose_reply_was_lost(mock_clock: MockClock) -> None:
    """B1: the outcome is withheld until the commit is confirmed by reading it back."""
    engine = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await publish(broker, 3, "s", delay=HOUR)
        lost = Once("commit", OutcomeUnknown("the reply was lost"))
        engine.after = lost
        lost.arm()
        assert (await broker.cancel([1], topic="t")).done.all()
        await world.clock.advance(hours=1)
        assert await everything(broker, "s") == [0, 2]


async def test_cancel_waits_for_the_database_and_withholds_the_message(
    mock_clock: MockClock,
) -> None:
    """B1: a read-only database refuses at once."""
    outage = Outage()
    patient = Settings(heartbeat_s=None, request_timeout_s=86_400)
    async with (
        testing.start(engine=outage.engine) as world,
        world.connect(settings=patient) as broker,
    ):
        await publish(broker, 3, "s", delay=HOUR)
        outage.unreachable()
        async with trio.open_nursery() as nursery:
            answers: list[escapement.Outcomes] = []

            async def ask() -> None:
                answers.append(await broker.cancel([1], topic="t"))

            nursery.start_soon(ask)
            await world.clock.advance(seconds=5)
            assert not answers
            async with broker.consumer("t", "s") as inbox:
                await world.clock.advance(hours=1)
                assert await offsets(inbox) == [0, 2]
            outage.over()
            await world.clock.advance(seconds=5)
        assert answers[0].done.all()
        outage.read_only()
        await world.clock.advance(seconds=5)
        with pytest.raises(StorageReadOnly):
            await broker.cancel([2], topic="t")
