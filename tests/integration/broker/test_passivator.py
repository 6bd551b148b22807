"""Passive topics, which have no runtime and keep their state."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
import trio

import escapement
from escapement import MessageId, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.testing import World
from support.seeds import seeds

CALM = BrokerConfig(ack_wait_ms=10_000, seed=0)
HOUR = timedelta(hours=1)


async def passivate(world: World) -> list[str]:
    """Run a round of the passivator, and return the names of the topics that stay active."""
    services = world.server.services
    await services.passivator.round()
    return sorted(topic.name.full for topic in services.registry.active.values())


def figures(stats: dict[str, Any]) -> dict[str, Any]:
    """Return a topic's figures, without the read positions of its subscriptions."""
    return stats | {"subscriptions": [one | {"behind": None} for one in stats["subscriptions"]]}


async def publish(broker: escapement.Broker, topic: str, *values: bytes, **options: object) -> None:
    """Publish with a producer, and close the producer."""
    async with await broker.producer(topic) as producer:
        await producer.send_many(list(values), **options)  # type: ignore[arg-type]


async def test_passive_topic_delivers_as_if_it_had_stayed_active(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P6, B1: acknowledgements, cancellations, new due times and figures are kept."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with await broker.producer("t") as producer:
            values = [b"cancelled", b"moved", b"late"]
            ids = [one.id for one in await producer.send_many(values, delay=HOUR)]
            await producer.send(b"done")
        async with broker.consumer("t", "s") as inbox:
            (first,) = await testing.arrived(inbox)
            await inbox.ack([first.id], durable=True)
        assert (await broker.cancel(ids[0])).done.all()
        assert (await broker.reschedule(ids[1], delay=2 * HOUR)).done.all()
        await world.checkpoint()
        before = await broker.admin("topics.stats", topic="t")
        for _ in range(2):  # passive and active again, more than once
            assert await passivate(world) == []
            assert figures(await broker.admin("topics.stats", topic="t")) == figures(before)
        assert await passivate(world) == []
        await world.clock.advance(hours=1)
        async with broker.consumer("t", "s") as inbox:
            (late,) = await testing.arrived(inbox)
            assert late.payload == b"late"
            await inbox.ack([late.id], durable=True)
            await world.clock.advance(hours=1)
            assert [m.payload for m in await testing.arrived(inbox)] == [b"moved"]


async def test_crash_of_a_broker_with_passive_topics_loses_nothing(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B5: one topic is passive at the crash, another became active by a publish."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            for topic in ("passive", "active"):
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
                await publish(broker, topic, b"first", delay=HOUR)
            assert await passivate(world) == []
            await publish(broker, "active", b"second", delay=HOUR)
        await world.crash()
        await world.restart()
        names = [topic.name.name for topic in world.server.registry.active.values()]
        assert names == ["active"]
        async with world.connect() as broker:
            await world.clock.advance(hours=1)
            for topic, values in (("passive", [b"first"]), ("active", [b"first", b"second"])):
                async with broker.consumer(topic, "s") as inbox:
                    assert [m.payload for m in await testing.arrived(inbox)] == values


async def test_passive_topic_goes_on_with_its_offsets_and_named_producers(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B3: a named producer keeps its sequence."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        for sequence in range(3):
            async with await broker.producer("t", name="p") as producer:
                assert (await producer.send(b"x")).id == MessageId("public/default/t", sequence)
                (known,) = world.server.registry.active[1].producers.values()
                assert (known.epoch, known.last_sequence) == (sequence + 1, sequence)
            assert await passivate(world) == []
            await world.checkpoint()
        stats = await broker.admin("topics.stats", topic="t")
        assert (stats["next_offset"], stats["published"]) == (3, 3)


async def test_passive_topic_still_knows_which_messages_no_earlier_broker_delivered(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B1: a message published after a crash can be cancelled, also if due before the crash."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic="t", subscription="s")
        await world.clock.advance(seconds=60)
        await world.crash()
        await world.restart()
        world.clock.set_back(30_000)
        async with world.connect() as broker:
            await world.clock.advance(seconds=5)
            await publish(broker, "t", b"x")
            assert await passivate(world) == []
            assert (await broker.cancel([MessageId("public/default/t", 0)])).done.all()


async def test_topic_that_is_used_or_acts_by_itself_stays_active(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A topic stays active while only the memory of its runtime has some of its state."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        kept = ["attempted", "consumed", "expiring", "grouped", "keyed", "ordered", "produced"]
        for topic in [*kept, "idle"]:
            kind = "exclusive" if topic == "ordered" else "shared"
            await broker.admin("subscriptions.create", topic=topic, subscription="s", kind=kind)
            await publish(broker, topic, b"x")
        await broker.admin("topics.update", topic="expiring", policy={"ttl_ms": 3_600_000})
        await publish(broker, "grouped", b"x", groups=["g"])
        await publish(broker, "keyed", b"x", dedup=["k"])
        async with broker.consumer("attempted", "s") as inbox:
            (message,) = await testing.arrived(inbox)
            await inbox.nack([message.id], HOUR)
        async with broker.consumer("consumed", "s") as inbox, await broker.producer("produced"):
            assert await passivate(world) == [f"public/default/{topic}" for topic in kept]
            await inbox.ack([m.id for m in await testing.arrived(inbox)], durable=True)
        stay = [topic for topic in kept if topic not in ("consumed", "produced")]
        assert await passivate(world) == [f"public/default/{topic}" for topic in stay]


async def test_runtime_in_use_by_a_task_stays_active(mock_clock: trio.testing.MockClock) -> None:
    """A task that holds a reference to a topic continues with the same object."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await publish(broker, "t", b"x")
        (topic,) = world.server.registry.active.values()
        assert await passivate(world) == ["public/default/t"]
        assert world.server.registry.topic(topic.name) is topic
        del topic
        assert await passivate(world) == []


async def test_topic_is_not_passivated_before_its_change_is_in_the_database(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A topic that changes while a checkpoint is written stays active until the next one."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await publish(broker, "t", b"x")
        services = world.server.services
        write = services.checkpointer.checkpoint

        async def write_and_publish() -> None:
            await write()
            await publish(broker, "t", b"y")

        services.checkpointer.checkpoint = write_and_publish  # type: ignore[method-assign]
        assert await passivate(world) == ["public/default/t"]
        services.checkpointer.checkpoint = write  # type: ignore[method-assign]
        assert await passivate(world) == []


async def test_acknowledged_messages_of_passive_topics_leave_the_index(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P3: a merge activates only topics that have acknowledged messages."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        for topic in ("done", "waiting"):
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            await publish(broker, topic, *[b"x" * 100] * 50, delay=HOUR)
            await world.checkpoint()
        await world.clock.advance(hours=1)
        async with broker.consumer("done", "s") as inbox:
            await inbox.ack([m.id for m in await testing.arrived(inbox)], durable=True)
        await passivate(world)
        services = world.server.services
        assert not services.registry.active
        await services.compactor.merge(list(services.index.manifest.segments))
        counts = {
            name: services.index.count(record.id)
            for name, record in services.registry.topics.items()
        }
        assert counts == {"public/default/done": 0, "public/default/waiting": 50}
        assert [topic.name.name for topic in services.registry.active.values()] == ["done"]


@pytest.mark.parametrize("policy", [{"ttl_ms": 60_000}, {"total_quota_messages": 10}])
async def test_namespace_that_gets_a_limit_makes_its_passive_topics_active(
    policy: dict[str, int], mock_clock: trio.testing.MockClock
) -> None:
    """P10: from then on, their messages may expire or be dropped."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        for number in range(3):
            await broker.admin("subscriptions.create", topic=f"t/n/{number}", subscription="s")
        assert await passivate(world) == []
        await broker.admin("namespaces.update", namespace="t/n", policy=policy)
        assert len(await passivate(world)) == 3


async def test_broker_keeps_no_more_topics_active_than_its_limit_says(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B5: the topics that became active first become passive first."""
    config = BrokerConfig(limits=BrokerLimits(active_topics=10), seed=0)
    async with testing.start(config=config) as world, world.connect() as broker:
        for number in range(30):
            await publish(broker, f"t{number}", b"x")
        await world.clock.advance(seconds=3)
        names = {topic.name.name for topic in world.server.registry.active.values()}
        assert names <= {f"t{number}" for number in range(20, 30)}


class Twin:
    """A broker that takes random steps and records its deliveries and answers."""

    def __init__(self, world: World, seed: int, passivates: bool) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.passivates = passivates
        self.told: list[object] = []
        self.offsets: dict[str, int] = {}

    async def run(self, steps: int) -> list[object]:
        """Take that many steps and return the records. The same seed takes the same steps."""
        for _ in range(steps):
            topic = self.rng.choice("ab")
            name = self.rng.choice(["publish", "publish", "consume", "consume", "amend", "advance"])
            if self.rng.random() < 0.1:
                name = "crash"
            async with self.world.connect() as broker:
                self.told.append((name, await getattr(self, name)(broker, topic)))
            if self.rng.random() < 0.5:
                await (passivate(self.world) if self.passivates else self.world.checkpoint())
        return self.told

    async def publish(self, broker: escapement.Broker, topic: str) -> None:
        begin, count = self.offsets.get(topic, 0), self.rng.randrange(1, 8)
        self.offsets[topic] = begin + count
        values = [b"%d" % offset for offset in range(begin, begin + count)]
        delays = [timedelta(seconds=self.rng.choice([0, 1, 30, 3600])) for _ in values]
        keys = [self.rng.choice("xyz") for _ in values]
        priorities = [self.rng.choice([0, 4, 9]) for _ in values]
        await publish(broker, topic, *values, delay=delays, keys=keys, priorities=priorities)

    async def consume(self, broker: escapement.Broker, topic: str) -> object:
        name = self.rng.choice(["s", "late"])
        begin = "earliest" if name == "s" else "latest"
        async with broker.consumer(topic, name, position=begin) as inbox:
            arrived = await testing.arrived(inbox)
            for message in sorted(arrived, key=lambda message: message.offset):
                if self.rng.random() < 0.8:
                    await inbox.ack([message.id], durable=True)
                elif self.rng.random() < 0.5:
                    await inbox.nack([message.id], timedelta(seconds=self.rng.choice([0, 5])))
        return sorted((m.offset, m.payload, m.attempt) for m in arrived)

    async def amend(self, broker: escapement.Broker, topic: str) -> object:
        ids = [
            MessageId(f"public/default/{topic}", self.rng.randrange(self.offsets[topic]))
            for _ in range(3 if topic in self.offsets else 0)
        ]
        if not ids:
            return None
        delay = timedelta(seconds=self.rng.choice([0, 10, 7200]))
        if self.rng.random() < 0.5:
            return str(await broker.cancel(ids))
        return str(await broker.reschedule(ids, delay=delay))

    async def advance(self, broker: escapement.Broker, topic: str) -> None:
        await self.world.clock.advance(seconds=self.rng.choice([1, 31, 3601]))

    async def crash(self, broker: escapement.Broker, topic: str) -> None:
        await self.world.crash()
        await self.world.restart()
        await self.world.clock.advance(seconds=5)


@pytest.mark.parametrize("seed", seeds(range(12)))
async def test_broker_that_passivates_at_random_delivers_as_its_twin_that_never_does(
    seed: int, mock_clock: trio.testing.MockClock
) -> None:
    """V1, V2, B1: deliveries and answers do not depend on passivation."""
    told = []
    for passivates in (True, False):
        async with testing.start(config=CALM) as world:
            told.append(await Twin(world, seed, passivates).run(60))
    assert told[0] == told[1]
