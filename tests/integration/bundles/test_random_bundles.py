"""Three brokers of different bundles on one database, compared with a naive model.

The workload draws random steps on the virtual clock: publishing with delays, consuming, dead
letters, redrives and follow-ups whose topics are in other bundles, schedules, checkpoints, new and
forgotten generations of the log, deleted topics, crashes of one broker while the others work, and
lost indexes. The model has the messages that each topic still owes to its subscription.

A failure prints its seed. ``ESCAPEMENT_SEED=n`` replays it.
"""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import trio.testing

from escapement import FollowUp
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION
from escapement.check.check import Check
from escapement.errors import WrongBundle
from escapement.storage.engine.base import Engine
from escapement.storage.log.generation import read_generations
from escapement.storage.state.state import load_state
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish, lose_index
from support.seeds import named, seeds
from support.storage.bundle_brokers import BUNDLES, brokers, full, home, names
from support.storage.forgetting_brokers import forget, roll

TOPICS_OF_EACH = 2
CONFIG = BrokerConfig(
    ack_wait_ms=10_000,
    limits=BrokerLimits(ready_messages=12, deliver_messages=5, window_messages=16),
    table_parallelism=2,
    seed=0,
)
TWICE = {"max_deliveries": 2, "jitter": 0, "min_backoff_ms": 1000}
DELAYS_S = [0, 0, 3, 60, 3600, 2 * 86_400]
TICK = timedelta(hours=6)
STEPS = 60
WEIGHTED = {
    "publish": 10,
    "consume": 14,
    "advance": 8,
    "group": 4,
    "redrive": 6,
    "checkpoint": 4,
    "crash": 3,
    "restart": 5,
    "restart_without_index": 1,
    "forget": 2,
    "sacrifice": 3,
    "ask_elsewhere": 2,
}


class Workload:
    """The brokers, and the messages that each topic owes to its subscription."""

    def __init__(self, worlds: list[World], engine: Engine, data: Path, rng: random.Random) -> None:
        self.worlds = worlds
        self.clock = worlds[0].clock
        self.engine = engine
        self.data = data
        self.rng = rng
        self.down: set[int] = set()
        self.topics = [name for n in range(BUNDLES) for name in names("x", n, TOPICS_OF_EACH)]
        # By topic, the due time of each message that is neither acknowledged nor a dead letter.
        self.owed: dict[str, dict[bytes, int]] = {topic: {} for topic in self.topics}
        self.groups: dict[bytes, set[bytes]] = {}  # by follow-up, the members of its group
        self.fates: dict[bytes, str] = {}  # by finished message, the topic that delivered it
        self.redriven: set[bytes] = set()
        self.ticks: dict[str, int] = {}
        self.count = 0
        self.beat_s = 0

    def wake(self) -> None:
        """Let the clock stop at the next work of each broker."""
        servers = [w.server for n, w in enumerate(self.worlds) if n not in self.down]

        def next_wake_ms() -> int | None:
            found = [server.next_wake_ms() for server in servers]
            return min((ms for ms in found if ms is not None), default=None)

        self.clock.next_wake_ms = next_wake_ms

    async def begin(self) -> None:
        async with self.worlds[0].connect() as broker:
            policy = {"retention_ms": "0s"}
            await broker.admin("namespaces.create", namespace="public/default")
            await broker.admin("namespaces.update", namespace="public/default", policy=policy)
        for world in self.worlds:  # the other brokers read the policy when they start
            await world.stop()
        for world in self.worlds:
            await world.restart()
        self.wake()
        for topic in self.topics:
            async with self.worlds[home(topic)].connect() as broker:
                await broker.admin(
                    "subscriptions.create", topic=topic, subscription="s", policy=TWICE
                )
        for bundle_id, world in enumerate(self.worlds):
            (topic,) = names("beats", bundle_id, 1)
            self.ticks[topic] = 0
            async with world.connect() as broker:
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
                await broker.schedules.create(topic, topic, b"tick", every=TICK, missed="all")
        self.beat_s = self.clock.now_ms() // 1000

    def up(self, topic: str) -> World | None:
        """Return the broker of a topic, or None if it is down."""
        return None if home(topic) in self.down else self.worlds[home(topic)]

    def message(self, topic: str, delay_s: int) -> bytes:
        self.count += 1
        value = b"%s %d" % (topic.encode(), self.count)
        self.owed[topic][value] = self.clock.now_ms() + 1000 * delay_s
        return value

    async def publish(self) -> None:
        topic = self.rng.choice(self.topics)
        if (world := self.up(topic)) is None:
            return
        async with world.connect() as broker, await broker.producer(topic) as producer:
            for _ in range(self.rng.randrange(1, 20)):
                delay_s = self.rng.choice(DELAYS_S)
                value = self.message(topic, delay_s)
                await producer.send(value, delay=timedelta(seconds=delay_s))

    async def group(self) -> None:
        """Publish a group whose follow-up goes to a topic of any bundle."""
        topic, target = self.rng.choice(self.topics), self.rng.choice(self.topics)
        if (world := self.up(topic)) is None:
            return
        name = f"g{self.count}"
        async with world.connect() as broker, await broker.producer(topic) as producer:
            members = {self.message(topic, 0) for _ in range(2)}
            for value in sorted(members):
                await producer.send(value, group=name)
            after = self.message(target, 0)
            self.groups[after] = members
            await producer.close_group(name, "s", FollowUp(after, target))

    async def consume(self, topic: str = "", *, last: bool = False) -> int:
        """Take the messages of a topic and of its dead-letter topic; return how many."""
        topic = topic or self.rng.choice(self.topics)
        dead = f"{topic}-s-DLQ"
        count = 0
        for name, subscription in ((topic, "s"), (dead, DEAD_LETTERS_SUBSCRIPTION)):
            if (world := self.up(name)) is None or full(name) not in world.server.registry.topics:
                continue
            async with world.connect() as broker, broker.consumer(name, subscription) as inbox:
                while messages := await arrived(inbox):
                    done = []
                    for one in messages:
                        self.check(topic, name, one.payload)
                        if name == dead or last or self.rng.random() < 0.6:
                            done.append(one)
                    count += len(messages)
                    await inbox.ack([one.id for one in done], durable=True)
                    for one in done:
                        self.fates[one.payload] = name
                        del self.owed[topic][one.payload]
                    if left := [one.id for one in messages if one not in done]:
                        await inbox.nack(left, timedelta(seconds=2))
        return count

    def check(self, topic: str, name: str, value: bytes) -> None:
        assert value not in self.fates, f"{value!r} came from {name} and {self.fates[value]}"
        assert self.owed[topic][value] <= self.clock.now_ms(), f"{value!r} is early"
        for member in self.groups.get(value, ()):
            came_from = member.split()[0].decode()
            # A member that became a dead letter is finished before its copy is consumed, or is
            # published again.
            is_over = member in self.fates or member in self.redriven
            assert is_over or self.up(came_from) is None or self.is_dead(member)

    def is_dead(self, value: bytes) -> bool:
        """Return whether a message is a dead letter, in the inbox or in its topic."""
        topic = value.split()[0].decode()
        world = self.worlds[home(topic)]
        found = world.server.registry.active.values()
        (one,) = (t for t in found if t.name.full == full(topic))
        return one.unacknowledged(one.subscription("s")) < len(self.owed[topic])

    async def redrive(self) -> None:
        """Send some dead letters of a topic back, at the broker of their dead-letter topic."""
        topic = self.rng.choice(self.topics)
        if (world := self.up(dead := f"{topic}-s-DLQ")) is None:
            return
        if full(dead) not in world.server.registry.topics:
            return
        async with world.connect() as broker:
            ask = partial(broker.admin, topic=topic, subscription="s")
            listed = await ask("dlq.list", count=100)
            if some := self.rng.sample(listed, self.rng.randint(0, len(listed))):
                offsets = [one["offset"] for one in some]
                self.redriven.update(one["payload"] for one in some)
                assert await ask("dlq.redrive", offsets=offsets) == {"redriven": len(some)}
                assert await ask("dlq.redrive", offsets=offsets) == {"redriven": 0}

    async def advance(self) -> None:
        await self.clock.advance(seconds=self.rng.choice([1, 5, 30, 700, 5000, 100_000]))

    def one_up(self) -> World | None:
        there = [n for n in range(BUNDLES) if n not in self.down]
        return self.worlds[self.rng.choice(there)] if there else None

    async def checkpoint(self) -> None:
        if (world := self.one_up()) is not None:
            await world.checkpoint()

    async def crash(self) -> None:
        if (world := self.one_up()) is not None:
            self.down.add(world.bundle_id)
            await world.crash()
            self.wake()

    async def restart(self, *, with_index: bool = True) -> None:
        if self.down:
            bundle_id = self.rng.choice(sorted(self.down))
            if not with_index:
                lose_index(self.worlds[bundle_id])
            await self.worlds[bundle_id].restart()
            self.down.discard(bundle_id)
            self.wake()

    async def restart_without_index(self) -> None:
        await self.restart(with_index=False)

    async def forget(self) -> None:
        """Begin a generation in one bundle, and drop the generations that it needs no more."""
        if (world := self.one_up()) is not None:
            others = self.generations_but(world.bundle_id)
            await roll(world)
            await world.checkpoint()
            await forget(world)
            assert self.generations_but(world.bundle_id) == others

    def generations_but(self, bundle_id: int) -> list[int]:
        connection = self.engine.connect()
        try:
            return [g.id for g in read_generations(connection) if g.bundle_id != bundle_id]
        finally:
            connection.close()

    async def sacrifice(self) -> None:
        """Create a topic with messages, and delete it again."""
        (topic,) = names(f"gone{self.count}-", self.rng.randrange(BUNDLES), 1)
        if (world := self.up(topic)) is None:
            return
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
            async with await broker.producer(topic) as producer:
                for number in range(3):
                    await producer.send(b"%d" % number)
            await broker.admin("topics.delete", topic=topic)
        await finish(world, world.server.services.housekeeper.round)

    async def ask_elsewhere(self) -> None:
        """Ask a broker for a topic of another bundle, which it refuses."""
        topic = self.rng.choice(self.topics)
        for bundle_id, world in enumerate(self.worlds):
            if bundle_id == home(topic) or bundle_id in self.down:
                continue
            async with world.connect() as broker:
                with pytest.raises(WrongBundle, match=f"belongs to bundle {home(topic)}"):
                    await broker.admin("subscriptions.create", topic=topic, subscription="s")

    async def end(self) -> None:
        """Restart all brokers, take all messages, and check the database."""
        while self.down:
            await self.restart()
        for _ in range(8):
            await self.clock.advance(days=1)
            for topic in self.topics:
                await self.consume(topic, last=True)
        assert self.owed == {topic: {} for topic in self.topics}
        for bundle_id, topic in enumerate(list(self.ticks)):
            async with self.worlds[bundle_id].connect() as broker:
                async with broker.consumer(topic, "s") as inbox:
                    while messages := await arrived(inbox):
                        await inbox.ack([one.id for one in messages], durable=True)
                        self.ticks[topic] += len(messages)
            passed_s = self.clock.now_ms() // 1000 - self.beat_s
            assert self.ticks[topic] == passed_s // int(TICK.total_seconds())
        for world in self.worlds:
            await world.checkpoint()
            await finish(world, world.server.services.housekeeper.round)
        self.check_database()
        for world in self.worlds:
            await world.stop()
        self.check_database()

    def check_database(self) -> None:
        found = Check(self.engine, self.data).run()
        assert [one for one in found if one.is_bad] == []
        connection = self.engine.connect()
        try:
            for table in ("inbox", "removals"):
                assert connection.execute(f"SELECT COUNT(*) FROM {table}").rows == [(0,)], table
            for bundle_id in range(BUNDLES):
                state = load_state(connection, bundle_id)
                for topic in state.topics:
                    assert topic.bundle_id == bundle_id == home(topic.name)
        finally:
            connection.close()


@pytest.mark.parametrize("seed", seeds(range(10)))
async def test_brokers_of_several_bundles_keep_their_promises_beside_each_other(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path, seed: int
) -> None:
    """Invariants 1 to 8 for each bundle, whatever happens to the brokers of the others."""
    rng, done = random.Random(seed), list[str]()
    async with brokers(engine, tmp_path, CONFIG) as worlds:
        workload = Workload(worlds, engine, tmp_path, rng)
        await workload.begin()
        with named(seed, done):
            for _ in range(STEPS):
                (step,) = rng.choices(list(WEIGHTED), list(WEIGHTED.values()))
                done.append(step)
                await getattr(workload, step)()
            await workload.end()
