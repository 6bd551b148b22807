"""The position at which a subscription begins, and seeks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.pipeline.rebuild import rebuild
from escapement.storage.engine.base import Engine
from escapement.storage.lease import Identity
from escapement.testing import World, arrived
from support.faults.held_calls import COMMIT, FETCH, KEYS, Held, uncached
from support.unrecorded_verbs import run_verb

HOUR_MS = 3_600_000
PATIENT = BrokerConfig(
    ack_wait_ms=100 * 24 * HOUR_MS,
    limits=BrokerLimits(ready_messages=8, deliver_messages=4),
    seed=0,
)


async def publish(broker: escapement.Broker, topic: str, *hours: int) -> None:
    """Publish a message for each delay in hours, with the delay as its value."""
    producer = await broker.producer(topic)
    await producer.send_many(
        [b"%d" % hour for hour in hours], delay=[timedelta(hours=hour) for hour in hours]
    )


async def taken(inbox: escapement.Inbox) -> list[bytes]:
    """Receive the messages that have arrived, and acknowledge them durably."""
    found = []
    while messages := await arrived(inbox):
        assert await inbox.ack([m.id for m in messages], durable=True) == len(messages)
        found += [m.value for m in messages]
    return found


def moment(world: World, **ago: float) -> datetime:
    """Return the time that lies this long ago."""
    return datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) - timedelta(**ago)


async def everything_is_done(world: World, broker: escapement.Broker, topic: str) -> None:
    """Acknowledge the topic's messages in a first subscription, so that the index forgets them."""
    async with broker.consumer(topic, "first", position="earliest", permits=100) as inbox:
        await taken(inbox)
    await world.checkpoint()
    assert world.server.index.count(world.server.registry.topics[topic].id) == 0


async def test_shared_subscription_begins_at_an_offset(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N1, N3: messages from that offset on are delivered at their due times."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, "x", 0, 3, 0, 0, 2, 1)
        await world.checkpoint()
        async with broker.consumer("x", "s", position=3) as inbox:
            assert await taken(inbox) == [b"0"]
            await publish(broker, "x", 0)
            assert await taken(inbox) == [b"0"]
            await world.clock.advance(hours=1)
            assert await taken(inbox) == [b"1"]
            await world.clock.advance(hours=9)
            assert await taken(inbox) == [b"2"]


async def test_shared_subscription_begins_at_a_time(mock_clock: trio.testing.MockClock) -> None:
    """N3: it gets messages due from then on, past or future, and all new messages."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, "x", 0, 1, 2, 3, 7, 8)
        await world.clock.advance(hours=5)
        async with broker.consumer("x", "past", position=moment(world, hours=3)) as inbox:
            assert await taken(inbox) == [b"2", b"3"]
            await publish(broker, "x", 0)
            await world.clock.advance(hours=3)
            assert await taken(inbox) == [b"0", b"7", b"8"]
        async with broker.consumer("x", "future", position=moment(world, hours=-2)) as inbox:
            await publish(broker, "x", 0, 1)
            await world.clock.advance(hours=4)
            assert await taken(inbox) == [b"0", b"1"]


async def test_exclusive_subscription_begins_at_an_offset_or_a_time(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """N1, P7: the time is that of acceptance, because the subscription follows the log order."""
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        for hour in range(6):
            await publish(broker, "x", hour, hour)
            await world.clock.advance(hours=1)

        async def values(name: str, position: int | datetime) -> list[bytes]:
            async with broker.consumer("x", name, kind="exclusive", position=position) as inbox:
                return await taken(inbox)

        assert await values("offset", 9) == [b"4", b"5", b"5"]
        assert await values("time", moment(world, hours=2, minutes=30)) == [b"4", b"4", b"5", b"5"]
        assert await values("exact", moment(world, hours=2)) == [b"4", b"4", b"5", b"5"]
        assert len(await values("all", moment(world, days=9))) == 12
        assert await values("none", moment(world, days=-9)) == []


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
async def test_unacknowledged_counts_only_messages_the_subscription_will_get(
    mock_clock: trio.testing.MockClock, engine: Engine, kind: str
) -> None:
    """B6: also after a later start, a seek or a cancelled message."""
    async with testing.start(config=PATIENT, engine=engine) as world, world.connect() as broker:
        for hour in range(6):
            await publish(broker, "x", hour, hour)

        async def behind() -> int:
            (row,) = await broker.admin("subscriptions.list", topic="x")
            return int(row["unacknowledged"])

        names = {"topic": "x", "subscription": "s"}
        await broker.admin("subscriptions.create", **names, kind=kind, position="latest")
        assert await behind() == 0
        await publish(broker, "x", 7, 0)
        assert await behind() == 2
        await broker.cancel([5, 13], topic="x")
        assert await behind() == 1
        async with broker.consumer("x", "s", kind=kind) as inbox:
            assert await taken(inbox) == [b"7"]
        assert await behind() == 0
        await broker.admin("subscriptions.seek", **names, position="offset:4")
        assert await behind() == 8
        await broker.admin("subscriptions.seek", **names, position="offset:13")
        assert await behind() == 0


async def test_seek_back_redelivers_acknowledged_and_forgotten_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3, invariant 3: only an explicit seek brings acknowledged messages back."""
    full = "public/default/x"
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, full, *[0] * 30)
        await everything_is_done(world, broker, full)
        async with broker.consumer(full, "first") as inbox:
            assert await taken(inbox) == []
            await inbox.seek(20)
            messages = await arrived(inbox)
            assert sorted(m.offset for m in messages) == list(range(20, 30))
            assert {(m.attempt, m.redelivered) for m in messages} == {(1, False)}
            await inbox.seek("earliest")
            assert len(await taken(inbox)) == 30
            await inbox.seek(moment(world, hours=1))
            assert len(await taken(inbox)) == 30
            await inbox.seek("latest")
            assert await taken(inbox) == []


async def test_seek_forward_skips_unacknowledged_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        async with broker.consumer("x", "s", permits=3) as inbox:
            await publish(broker, "x", *[0] * 9, 1)
            assert len(await arrived(inbox)) == 9
            await inbox.seek("latest")
            assert await arrived(inbox) == []
            await world.clock.advance(hours=1)
            assert await taken(inbox) == [b"1"]


async def test_seek_takes_back_messages_buffered_at_the_consumer(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3, invariant 5: delivery goes on in order from the new position, with the whole credit."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send_many([b"%d" % n for n in range(20)])
        async with broker.consumer(
            "x", "s", kind="exclusive", position="earliest", permits=5
        ) as inbox:
            await trio.testing.wait_all_tasks_blocked()
            message = await inbox.receive()
            assert message is not None
            assert message.offset == 0
            await inbox.seek(10)
            assert await taken(inbox) == [b"%d" % n for n in range(10, 20)]
            await inbox.seek(1)
            assert await taken(inbox) == [b"%d" % n for n in range(1, 20)]


async def test_acknowledgement_after_a_seek_counts(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3: any consumer may acknowledge the offset. Acknowledgements from before no longer count."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        async with (
            broker.consumer("x", "s", permits=50) as one,
            broker.consumer("x", "s", permits=1) as other,
        ):
            await publish(broker, "x", *[0] * 4)
            messages = await arrived(one)
            kept = messages[0].offset
            await one.ack([m.offset for m in messages[1:]], durable=True)
            await broker.admin(
                "subscriptions.seek", topic="x", subscription="s", position="earliest"
            )
            assert await one.ack(kept, durable=True) == 1
            again = [m.offset for inbox in (one, other) for m in await arrived(inbox)]
            assert sorted(again) == sorted({0, 1, 2, 3} - ({kept} - set(again)))
            assert await one.ack(kept, durable=True) == 0


async def test_seek_survives_a_crash(mock_clock: trio.testing.MockClock, engine: Engine) -> None:
    """N3, P6: acknowledgements in the journal from before the seek do not count after it."""
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            await publish(broker, "x", *[0] * 5, 1)
            async with broker.consumer("x", "s", position="earliest") as inbox:
                await taken(inbox)
                await inbox.seek(2)
                first, *_ = await arrived(inbox)
                await first.ack(durable=True)
                done = first.offset
            await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            again = await arrived(inbox)
            assert {m.offset for m in again} == {2, 3, 4} - {done}
            assert all(m.redelivered for m in again)
            await inbox.ack([m.id for m in again], durable=True)
            await world.clock.advance(hours=1)
            assert await taken(inbox) == [b"1"]


async def test_delayed_message_acknowledged_early_is_delivered_on_time_after_a_seek(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3: the index keeps messages that are not yet due, even if acknowledged."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        async with broker.consumer("x", "s") as inbox:
            await publish(broker, "x", 1, 2)
            await inbox.ack([0, 1], durable=True)
            await world.checkpoint()
            await publish(broker, "x", 0)
            await world.checkpoint()
            await inbox.seek("earliest")
            assert await taken(inbox) == [b"0"]
            await world.clock.advance(hours=2)
            assert await taken(inbox) == [b"1", b"2"]


@asynccontextmanager
async def unread(world: World) -> AsyncIterator[None]:
    """Let the filler learn where the log begins, but hold back its reads of due messages."""
    reader = world.server.services.reader
    reading, there = reader.read_due, trio.Event()

    async def read_due(*arguments: Any) -> Any:
        await there.wait()
        return await reading(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "read_due", read_due)
        yield
    there.set()


async def test_message_removed_by_a_merge_during_a_seek_is_delivered_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariants 4 and 6: acknowledged when the merge began, and pending again before it ended."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, "x", *[0] * 6)
        async with broker.consumer("x", "s", position="earliest", permits=2) as inbox:
            await world.checkpoint()  # all messages are in a segment
            assert len(await taken(inbox)) == 6
            index = world.server.index
            (topic,) = world.server.registry.active.values()
            names = [path.name for path in world.index_directory.glob("*.segment")]
            merge = index.begin_compaction(names)
            merge.exclude(topic.id, topic.shared["s"].acked.to_array(0, 6))
            merge.run_here()
            merge.finish({})
            async with unread(world):  # so the fill does not reach them
                await inbox.seek("earliest")
                await trio.testing.wait_all_tasks_blocked()
                # Two messages are with the consumer, the others are ready.
                index.install_compaction(merge)
                assert len(await arrived(inbox)) == 2
            assert len(await arrived(inbox)) == 4


async def test_message_removed_by_a_merge_during_a_seek_can_be_dead_lettered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1, invariant 7: it fails its last attempt before the fill reaches it."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, "x", 0, 0)
        names = {"topic": "x", "subscription": "s"}
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", **names, position="earliest", policy=policy)
        async with broker.consumer("x", "s") as inbox:
            await world.checkpoint()
            assert len(await taken(inbox)) == 2
            server = world.server
            (topic,) = server.registry.active.values()
            segments = [path.name for path in world.index_directory.glob("*.segment")]
            merge = server.index.begin_compaction(segments)
            merge.exclude(topic.id, topic.shared["s"].acked.to_array(0, 2))
            merge.run_here()
            merge.finish({})
            async with unread(world):
                await inbox.seek("earliest")
                again = await arrived(inbox)
                server.index.install_compaction(merge)
                await inbox.nack([message.id for message in again])
                await world.clock.settle()
            await world.clock.advance(seconds=5)
            assert len(await broker.admin("dlq.list", **names, count=10)) == len(again) == 2
        assert world.server is server


@pytest.mark.parametrize("kind", [KEYS, FETCH])
async def test_messages_being_read_during_a_seek_are_sent_from_the_new_position_only(
    mock_clock: trio.testing.MockClock, kind: str
) -> None:
    """Invariant 5: they were chosen for the old position."""
    held = Held()
    config = uncached(PATIENT)
    async with testing.start(config=config, run=held) as world, world.connect() as broker:
        await publish(broker, "x", *[0] * 6)
        await broker.admin("subscriptions.create", topic="x", subscription="s", position="earliest")
        await world.checkpoint()
        async with AsyncExitStack() as stack:
            with held.hold(kind):
                inbox = await stack.enter_async_context(broker.consumer("x", "s", permits=100))
                await held.reached()
                await inbox.seek(4)
            messages = await arrived(inbox)
            assert sorted(m.offset for m in messages) == [4, 5]
            assert {m.attempt for m in messages} == {1}
            await inbox.seek("earliest")
            assert len(await taken(inbox)) == 6


async def test_message_published_while_a_seek_commits_is_delivered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Invariant 4: it is past the new position, whichever commit is first."""
    held = Held()
    async with testing.start(config=PATIENT, run=held) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox, trio.open_nursery() as nursery:
            await producer.send(b"before")
            assert len(await arrived(inbox)) == 1
            with held.hold(COMMIT):
                asked = {"topic": "x", "subscription": "s", "position": "latest"}
                nursery.start_soon(lambda: run_verb(world, "subscriptions.seek", **asked))
                await held.reached()
                nursery.start_soon(producer.send, b"meanwhile")
                await trio.testing.wait_all_tasks_blocked()
            assert await taken(inbox) == [b"meanwhile"]


async def test_cancelled_message_that_was_in_flight_is_redelivered_after_a_crash(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1, invariant 7: the fill adds it to the index for the subscription that had it in flight."""
    async with testing.start(config=PATIENT) as world:
        async with world.connect() as broker:
            await publish(broker, "public/default/x", 0, 0)
            await everything_is_done(world, broker, "public/default/x")
            async with broker.consumer("x", "s", position="earliest") as inbox:
                assert len(await arrived(inbox)) == 2
                await broker.admin(
                    "subscriptions.create", topic="x", subscription="b", position="earliest"
                )
                (outcome,) = await broker.cancel([0], topic="x")
                assert outcome.done
                await world.crash()
        await world.restart()
        server = world.server
        async with world.connect() as broker:
            async with broker.consumer("x", "s") as inbox:
                assert sorted(m.offset for m in await arrived(inbox)) == [0, 1]
            async with broker.consumer("x", "b") as inbox:
                assert [m.offset for m in await arrived(inbox)] == [1]
        assert world.server is server


async def test_seek_to_a_time_finds_messages_rescheduled_past_it(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1, N3: the latest due time of a message counts."""
    full = "public/default/x"
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, full, 1)
        await publish(broker, full, 1)
        (outcome,) = await broker.reschedule([1], delay=timedelta(hours=5), topic=full)
        assert outcome.done
        await world.clock.advance(hours=6)
        await everything_is_done(world, broker, full)
        async with broker.consumer(full, "s", position=moment(world, hours=3)) as inbox:
            assert [m.offset for m in await arrived(inbox)] == [1]


async def test_seek_is_not_applied_to_a_new_subscription_of_the_same_name(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N3: the subscription is deleted and created again while the seek waits for its turn."""
    held = Held()
    async with testing.start(config=PATIENT, run=held) as world, world.connect() as broker:
        await publish(broker, "x", 0)
        asked = {"topic": "x", "subscription": "s"}
        await broker.admin("subscriptions.create", **asked)
        refused: list[escapement.EscapementError] = []

        async def seek() -> None:
            try:
                await run_verb(world, "subscriptions.seek", **asked, position="time:0")
            except escapement.EscapementError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(lambda: run_verb(world, "subscriptions.delete", **asked))
                await held.reached()
                again = {**asked, "kind": "exclusive"}
                nursery.start_soon(lambda: run_verb(world, "subscriptions.create", **again))
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(seek)
                await trio.testing.wait_all_tasks_blocked()
        (error,) = refused
        assert isinstance(error, escapement.NotFound)
        (row,) = await broker.admin("subscriptions.list", topic="x")
        assert row["kind"] == "exclusive"


async def test_invalid_position_is_refused(mock_clock: trio.testing.MockClock) -> None:
    """N3: the error names the problem, and the subscription does not change."""
    async with testing.start(config=PATIENT) as world, world.connect() as broker:
        await publish(broker, "x", 0, 0)
        with pytest.raises(escapement.NaiveDatetime):
            async with broker.consumer("x", "s", position=datetime(2026, 12, 24)):
                pass
        with pytest.raises(
            escapement.InvalidRequest, match="latest, earliest, an offset, a message id or a"
        ):
            async with broker.consumer("x", "s", position="middle"):
                pass
        with pytest.raises(escapement.InvalidRequest, match="offset 3 does not exist yet"):
            async with broker.consumer("x", "s", position=3):
                pass
        async with broker.consumer("x", "s", position=2) as inbox:
            with pytest.raises(escapement.InvalidRequest, match="the next is 2"):
                await inbox.seek(3)
            with pytest.raises(escapement.InvalidRequest):
                await inbox.seek(-1)
            with pytest.raises(escapement.InvalidRequest, match="a position must be"):
                await broker.admin(
                    "subscriptions.seek", topic="x", subscription="s", position="offset:x"
                )
            with pytest.raises(escapement.NotFound, match="no subscription t"):
                await broker.admin(
                    "subscriptions.seek", topic="x", subscription="t", position="latest"
                )
            assert await arrived(inbox) == []


@pytest.mark.parametrize("position", ["earliest", "latest"])
@pytest.mark.parametrize("restart", ["no", "stop", "crash", "rebuild"])
async def test_messages_due_before_the_clock_was_set_back_are_delivered(
    mock_clock: trio.testing.MockClock, engine: Engine, restart: str, position: str
) -> None:
    """Q7, invariant 7: the index forgot them when they were due, and now they are delayed again.

    A rebuilt index does not have them either.
    """
    async with testing.start(config=PATIENT, engine=engine) as world:
        async with world.connect() as broker:
            await publish(broker, "t/n/x", 1, 2, 3)
            await world.clock.advance(hours=2.5)
            async with broker.consumer("t/n/x", "first", position="earliest") as inbox:
                assert await taken(inbox) == [b"1", b"2"]
            await world.checkpoint()
        if restart == "stop":
            await world.stop()
        elif restart == "crash":
            await world.crash()
        elif restart == "rebuild":
            await world.stop()
            rebuild(engine, Identity("0" * 32, "rebuild"), world.index_directory, world.clock)
        world.clock.set_back(2 * HOUR_MS)
        if restart != "no":
            await world.restart()
        await world.clock.advance(seconds=1)
        async with world.connect() as broker:
            async with broker.consumer("t/n/x", "late", position=position) as inbox:
                await world.clock.advance(minutes=1)
                assert await taken(inbox) == []
                await world.clock.advance(hours=1)
                assert await taken(inbox) == [b"1"]
                await world.checkpoint()
                await world.clock.advance(hours=2)
                assert await taken(inbox) == [b"2", b"3"]
                await world.clock.advance(days=1)
                assert await taken(inbox) == []
