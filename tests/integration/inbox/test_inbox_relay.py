"""The inbox relay in a whole broker, on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import NotFound, OutcomeUnknown, StorageUnavailable
from escapement.names import TopicName
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox.entry import InboxEntry
from escapement.testing import World, arrived
from support.messages.received_messages import in_log
from support.storage.commit_pipelines import FaultyEngine, Once
from support.storage.inbox_entries import inbox_entry
from support.storage.inbox_entries import post as put

DAY_MS = 86_400_000


async def post(world: World, *inbox_entries: InboxEntry) -> None:
    """Put entries into the inbox, and wait until the relay has nothing left to do."""
    await put(world, inbox_entries)
    await world.clock.settle()


async def payloads(world: World, topic: str) -> list[bytes]:
    """Return all payloads of a topic's log, in order."""
    async with world.connect() as broker:
        return await in_log(broker, topic)


async def waiting(world: World) -> dict[str, tuple[int, int]]:
    """Return the numbers of waiting and stuck entries, by target."""
    found = await world.server.services.inbox_relay.waiting(99)
    return {one.target: (one.entries, one.stuck) for one in found}


async def test_entry_creates_its_topic_and_is_delivered_at_its_due_time(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B2: the topic is created as by a publish, and its messages are delivered as usual."""
    async with testing.start() as world, world.connect() as broker:
        at_ms = world.clock.now_ms() + 2 * DAY_MS
        await post(
            world,
            inbox_entry("t/n/x", "now"),
            inbox_entry("t/n/x", "later", b"in a day", b"at once", delay_ms=[DAY_MS, -1]),
            inbox_entry("t/n/x", "at", at_ms=[at_ms]),
        )
        assert await waiting(world) == {}
        async with broker.consumer("t/n/x", "s", position="earliest") as consumer:
            first = await arrived(consumer)
            assert {m.payload for m in first} == {b"now", b"at once"}
            await consumer.ack([m.id for m in first])
            await world.clock.advance(days=1, ms=-1)
            assert await arrived(consumer) == []
            await world.clock.advance(seconds=1)
            (second,) = await arrived(consumer)
            assert second.payload == b"in a day"
            await consumer.ack([second.id])
            await world.clock.advance(days=1)
            (last,) = await arrived(consumer)
            assert (last.payload, last.due_ms) == (b"at", at_ms)


async def test_entries_keep_their_order_beside_published_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    limits = BrokerLimits(inbox_step_bytes=300, inbox_round_bytes=700)
    async with testing.start(config=BrokerConfig(limits=limits, seed=0)) as world:
        async with world.connect() as broker:
            producer = await broker.producer("t/n/3")
            await producer.send(b"published")
        await post(world, *(inbox_entry(f"t/n/{n % 7}", f"{n:03}") for n in range(700)))
        for topic in range(7):
            wanted = [b"%03d" % n for n in range(topic, 700, 7)]
            assert await payloads(world, f"t/n/{topic}") == [b"published"] * (topic == 3) + wanted
        stats = world.server.stats()
        assert stats["inbox_moved"] == 700
        assert stats["inbox_blocked"] == []


async def test_crash_between_any_two_steps_moves_each_entry_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6 for messages that pass through the inbox."""
    async with testing.start() as world:
        written: list[bytes] = []
        for pauses in range(30):
            name = b"%02d" % pauses
            await put(world, [inbox_entry("t/n/x", name.decode())])
            written.append(name)
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            await world.crash()
            await world.restart()
        await world.clock.settle()
        assert await payloads(world, "t/n/x") == written


@pytest.mark.parametrize("durable", [True, False], ids=["committed", "not-committed"])
async def test_lost_commit_reply_neither_loses_nor_duplicates_an_entry(
    mock_clock: trio.testing.MockClock, durable: bool
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    fault = Once("commit", OutcomeUnknown("the reply was lost"))
    setattr(faulty, "after" if durable else "before", fault)
    async with testing.start(engine=faulty) as world:
        for n in range(3):
            await put(world, [inbox_entry("t/n/x", f"{n}")])
            fault.arm()  # hits the move or the creation of the topic
            await world.clock.advance(seconds=5)
        assert await payloads(world, "t/n/x") == [b"0", b"1", b"2"]


async def test_entries_are_moved_after_an_outage(
    mock_clock: trio.testing.MockClock,
) -> None:
    faulty = FaultyEngine(SqliteEngine.in_memory())
    async with testing.start(engine=faulty) as world:
        await post(world, inbox_entry("t/n/x", "0"))
        await put(world, [inbox_entry("t/n/x", "1")])
        outage = faulty.before = Once("", StorageUnavailable("away"), times=10**6)
        outage.arm()
        await world.clock.advance(minutes=1)
        with pytest.raises(StorageUnavailable):
            await put(world, [inbox_entry("t/n/x", "never")])
        outage.left = 0
        await world.clock.advance(minutes=1)
        assert await payloads(world, "t/n/x") == [b"0", b"1"]


async def test_relay_finds_entries_written_by_another_process(
    mock_clock: trio.testing.MockClock,
) -> None:
    from escapement.storage.inbox import inbox

    engine = SqliteEngine.in_memory()
    async with testing.start(engine=engine) as world:
        connection = engine.connect()
        connection.begin()
        inbox.insert(engine, connection, [inbox_entry("t/n/x", "s")], 0)
        connection.commit()
        connection.close()
        await world.clock.advance(seconds=2)
        assert await payloads(world, "t/n/x") == [b"s"]


# -- entries that cannot be moved --------------------------------------------------


async def test_entries_wait_for_a_missing_topic_without_blocking_other_targets(
    mock_clock: trio.testing.MockClock,
) -> None:
    config = BrokerConfig(auto_create_topics=False, seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t/n/there")
        await post(
            world,
            inbox_entry("t/n/not-there", "1"),
            inbox_entry("no topic's name", "1"),
            inbox_entry("t/n/there", "1"),
            inbox_entry("t/n/not-there", "2"),
        )
        assert await payloads(world, "t/n/there") == [b"1"]
        assert await waiting(world) == {"t/n/not-there": (2, 0), "no topic's name": (1, 0)}
        blocked = world.server.stats()["inbox_blocked"]
        listed = await broker.admin("inbox.list")
        assert sorted(blocked) == sorted(f"{one['target']}: {one['reason']}" for one in listed)
        assert len(blocked) == 2
        await broker.admin("topics.create", topic="t/n/not-there")
        await world.clock.advance(seconds=2)
        assert await payloads(world, "t/n/not-there") == [b"1", b"2"]
        assert await broker.admin("inbox.discard", target="no topic's name") == {"discarded": 1}
        await world.clock.advance(seconds=2)
        assert await waiting(world) == {}
        assert world.server.stats()["inbox_blocked"] == []


async def test_delayed_entry_blocks_its_target_while_delays_are_disabled(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("namespaces.disable_delayed_message", namespace="t/n")
        await post(
            world,
            inbox_entry("t/n/x", "1"),
            inbox_entry("t/n/x", "2", delay_ms=[1000]),
            inbox_entry("t/n/x", "3"),
            inbox_entry("t/other/x", "1", delay_ms=[0]),
        )
        assert await payloads(world, "t/n/x") == [b"1"]
        assert await payloads(world, "t/other/x") == [b"1"]
        assert await waiting(world) == {"t/n/x": (2, 0)}
        await broker.admin("namespaces.enable_delayed_message", namespace="t/n")
        await world.clock.advance(seconds=2)
        assert await payloads(world, "t/n/x") == [b"1", b"2", b"3"]


async def test_entry_that_can_never_be_moved_is_stuck_and_later_entries_move_on(
    mock_clock: trio.testing.MockClock,
) -> None:
    engine = SqliteEngine.in_memory()
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("namespaces.disable_delayed_message", namespace="t/n")
        too_far = world.server.config.limits.max_delay_ms + 1
        await post(
            world,
            inbox_entry("t/n/x", "blocks", delay_ms=[1]),
            inbox_entry("t/n/x", "damaged"),
            inbox_entry("t/n/x", "too far", delay_ms=[too_far]),
            inbox_entry("t/n/x", "negative", at_ms=[-5]),
            inbox_entry("t/n/x", "good"),
        )
        connection = engine.connect()
        connection.execute("UPDATE inbox SET data = 'nonsense' WHERE source_id = 'damaged'")
        connection.close()
        await broker.admin("namespaces.enable_delayed_message", namespace="t/n")
        await world.clock.advance(seconds=2)
        assert await payloads(world, "t/n/x") == [b"blocks", b"good"]
        assert await waiting(world) == {"t/n/x": (3, 3)}
        (listed,) = await broker.admin("inbox.list")
        assert listed["reason"]
        await world.crash()
        await world.restart()
        await post(world, inbox_entry("t/n/x", "better"))
        assert await payloads(world, "t/n/x") == [b"blocks", b"good", b"better"]
        assert await waiting(world) == {"t/n/x": (3, 3)}


async def test_deleting_a_topic_discards_its_entries(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q7: later entries create the topic again, as a publish does."""
    engine = SqliteEngine.in_memory()
    async with testing.start(engine=engine) as world, world.connect() as broker:
        await broker.admin("topics.create", topic="t/n/x")
        await broker.admin("namespaces.disable_delayed_message", namespace="t/n")
        await post(world, *(inbox_entry("t/n/x", f"{n}", delay_ms=[1]) for n in range(300)))
        assert await waiting(world) == {"t/n/x": (300, 0)}
        await broker.admin("topics.delete", topic="t/n/x")
        assert await waiting(world) == {}
        await world.crash()
        await world.restart()
        for _ in range(20):  # every step of the housekeeper, and the pause after it
            await world.clock.advance(seconds=11)
        with pytest.raises(NotFound):
            world.server.registry.topic(TopicName.parse("t/n/x"))
        connection = engine.connect()
        assert connection.execute("SELECT COUNT(*) FROM inbox").rows == [(0,)]
        connection.close()
        await post(world, inbox_entry("t/n/x", "0"))
        assert await payloads(world, "t/n/x") == [b"0"]


async def test_recreated_topic_gets_no_entries_of_the_deleted_topic(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Each entry moves to the topic it was written for, or is discarded with it."""
    async with testing.start() as world, world.connect() as broker:
        for pauses in range(40):
            await put(world, [inbox_entry("t/n/x", f"old {pauses}")])
            for _ in range(pauses):
                await trio.lowlevel.checkpoint()
            try:
                await broker.admin("topics.delete", topic="t/n/x")
            except NotFound:  # the relay has not created the topic yet
                await world.clock.settle()
                await broker.admin("topics.delete", topic="t/n/x")
            await post(world, inbox_entry("t/n/x", "new"))
            assert await payloads(world, "t/n/x") == [b"new"]
            assert await waiting(world) == {}


async def test_entries_left_by_a_stopped_broker_are_moved_by_the_next_start(
    mock_clock: trio.testing.MockClock,
) -> None:
    limits = replace(BrokerLimits(), inbox_step_bytes=1)
    async with testing.start(config=BrokerConfig(limits=limits, seed=0)) as world:
        count = 200
        await put(world, [inbox_entry("t/n/x", f"{n:03}") for n in range(count)])
        await world.stop()
        await world.restart()
        await world.clock.settle()
        assert await payloads(world, "t/n/x") == [b"%03d" % n for n in range(count)]


async def test_moved_entry_wakes_a_waiting_consumer(mock_clock: trio.testing.MockClock) -> None:
    async with testing.start() as world, world.connect() as broker:
        async with broker.consumer("t/n/x", "s") as consumer:
            await post(world, inbox_entry("t/n/x", "s", b"hello", delay_ms=[5000]))
            await world.clock.advance(seconds=6)
            got: list[escapement.Message] = await arrived(consumer)
            assert [m.payload for m in got] == [b"hello"]
            await consumer.ack([m.id for m in got], durable=True)
