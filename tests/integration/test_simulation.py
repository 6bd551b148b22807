"""A random life of a broker, held against a naive model.

Publishing, with dedup keys and without, cancelling, moving, time, consumers that come, go,
acknowledge, give back or fall silent, seeks, checkpoints, a log that forgets, crashes, clean
restarts, a lost index, a clock that is set back, settings that change: in any order, on the
virtual clock, with bounds so small that every one of them is met. The model knows for each
subscription what it must get and what it has durably acknowledged. After every delivery and
at the end the design's invariants are checked.

A failure names its seed; ``ESCAPEMENT_SEED=n`` replays it alone.
"""

from __future__ import annotations

import contextlib
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.client import schedule
from escapement.testing import World, arrived
from letters import letter

SEEDS = [int(os.environ["ESCAPEMENT_SEED"])] if "ESCAPEMENT_SEED" in os.environ else range(30)
STEPS = 60
TIGHT = BrokerConfig(
    ack_wait_ms=20_000,
    limits=BrokerLimits(ready_messages=12, deliver_messages=5, window_messages=16),
    seed=0,
)
TOPIC = "t/n/x"
# The subscription whose messages are tried a bounded number of times.
MORTAL = "c"
NEVER_MS = 1 << 62
DEDUP_WINDOW_MS = 600_000


@dataclass
class Claim:
    """What one subscription must get, and what it has told the broker."""

    since_offset: int
    since_ms: int  # of earlier offsets, what is due from here on
    acked: set[int] = field(default_factory=set)  # with a receipt
    seen: dict[int, int] = field(default_factory=dict)  # offset -> deliveries
    left_ms: int = -1  # what was due by then may have been in an inbox nobody looked into
    # Of what was handed to it and then moved for others: the time it keeps.
    kept: dict[int, int] = field(default_factory=dict)
    spared: set[int] = field(default_factory=set)  # cancelled before it was handed them
    lucky: set[int] = field(default_factory=set)  # forgotten before it began; a few may be left

    def covers(self, offset: int, due_ms: int) -> bool:
        if offset in self.spared:
            return False
        return offset >= self.since_offset or due_ms >= self.since_ms


class Life:
    """The broker, its clients, and the model beside them."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.published: dict[int, tuple[bytes, int]] = {}  # offset -> value, due
        self.keys: dict[str, tuple[int, int]] = {}  # dedup key -> offset, when published
        self.cancelled: set[int] = set()
        self.begin = 0  # of what lies before in the log, what was done is forgotten
        self.first_ms: dict[int, int] = {}  # of what was moved: the first of its times
        self.claims: dict[str, Claim] = {}
        self.inboxes: list[tuple[str, escapement.Inbox]] = []
        self.doubtful_ms = -1  # what was due by then may be marked redelivered
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        self.broker = await self._stack.enter_async_context(self.world.connect())
        self.producer = await self.broker.producer(TOPIC, name="life")

    async def close(self) -> None:
        self.inboxes.clear()
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        for claim in self.claims.values():
            claim.left_ms = self.world.clock.now_ms()

    # -- steps ---------------------------------------------------------------------

    async def publish(self) -> None:
        count = self.rng.choice([1, 1, 3, 20])
        delays = [self.rng.choice([0, 0, 5, 60, 300, 4000, 90_000]) for _ in range(count)]
        start = len(self.published)
        values = [b"%d" % (start + i) for i in range(count)]
        accepted_ms = self.world.clock.now_ms()
        keys = [self.rng.choice([None, None, None, "k", "l", "m", "n"]) for _ in range(count)]
        receipts = await self.producer.send_many(
            values,
            delay=[timedelta(seconds=delay) for delay in delays],
            priorities=self.rng.choice([None, [self.rng.choice([0, 50, 200]) for _ in values]]),
            dedup=keys,
        )
        for value, delay, key, receipt in zip(values, delays, keys, receipts, strict=True):
            offset = receipt.id.offset
            first = self.keys.get(key or "")
            if first is not None and first[1] + DEDUP_WINDOW_MS > accepted_ms:
                assert receipt.duplicate, f"{value!r} was stored as {first[0]}"
                assert offset == first[0]
                continue
            assert not receipt.duplicate
            assert offset not in self.published
            self.published[offset] = (value, accepted_ms + delay * 1000)
            if key is not None:
                self.keys[key] = (offset, accepted_ms)

    async def post(self) -> None:
        """The same through the inbox; perhaps the broker dies while letters are moved."""
        now_ms = self.world.clock.now_ms()
        letters = []
        for number in range(self.rng.choice([1, 1, 4])):
            start = len(self.published)
            delays_ms = [self.rng.choice([-1, 0, 7000, 300_000]) for _ in range(number % 2 + 1)]
            values = [b"%d" % (start + i) for i in range(len(delays_ms))]
            letters.append(
                letter(TOPIC, f"{start}", *values, at_ms=[now_ms + ms for ms in delays_ms])
            )
            for value, delay_ms in zip(values, delays_ms, strict=True):
                self.published[len(self.published)] = (value, now_ms + max(delay_ms, 0))
        await self.world.server.postman.post(letters)
        if self.rng.random() < 0.3:
            for _ in range(self.rng.randrange(12)):
                await trio.lowlevel.checkpoint()
            await self.crash()
        await self.world.clock.settle()

    async def advance(self) -> None:
        await self.world.clock.advance(seconds=self.rng.choice([0.5, 1, 7, 61, 400, 5000]))

    async def subscribe(self) -> None:
        if len(self.inboxes) >= 4:
            return
        name = self.rng.choice("abc")
        await self.look()
        where, claim = self.place()
        self.claims.setdefault(name, claim)
        inbox = await self._stack.enter_async_context(
            self.broker.consumer(TOPIC, name, position=where, permits=9)
        )
        if name == MORTAL:
            names = {"topic": TOPIC, "subscription": name}
            await self.broker.admin("subscriptions.update", **names, policy={"max_deliveries": 2})
        self.inboxes.append((name, inbox))

    def claim(self, since_offset: int, since_ms: int) -> Claim:
        now_ms = self.world.clock.now_ms()
        past = {o for o, (_, due_ms) in self.published.items() if due_ms <= now_ms}
        lucky = {offset for offset in past if offset < self.begin}
        return Claim(since_offset, since_ms, spared=set(self.cancelled), lucky=lucky)

    def place(self) -> tuple[str | int | datetime, Claim]:
        """Somewhere to begin, and what a subscription that begins there must get."""
        # What is committed at this moment is all there is: nothing is under way.
        end, now_ms = len(self.published), self.world.clock.now_ms()
        match self.rng.randrange(4):
            case 0:
                return "earliest", self.claim(0, 0)
            case 1:
                return "latest", self.claim(end, now_ms + 1)
            case 2:
                offset = self.rng.randint(0, end)
                return offset, self.claim(offset, NEVER_MS)
            case _:
                at_ms = now_ms + self.rng.randint(-10_000, 1_000) * 1000
                return datetime.fromtimestamp(at_ms / 1000, UTC), self.claim(end, at_ms)

    async def seek(self) -> None:
        names = sorted(self.claims.keys() - {MORTAL})
        if not names:
            return
        name = self.rng.choice(names)
        await self.look()
        where, claim = self.place()
        attached = [inbox for other, inbox in self.inboxes if other == name]
        if attached:
            await self.rng.choice(attached).seek(where)
        else:
            await self._seek(name, where)
        self.claims[name] = claim

    async def _seek(self, name: str, where: str | int | datetime) -> None:
        position = str(schedule.position(where))
        await self.broker.admin(
            "subscriptions.seek", topic=TOPIC, subscription=name, position=position
        )

    async def crash_in_seek(self) -> None:
        """Before its commit nothing has changed; after it, all."""
        names = sorted(self.claims.keys() - {MORTAL})
        if not names:
            return
        name = self.rng.choice(names)
        await self.look()
        where, claim = self.place()
        before = self._record_id(name)

        async def seek() -> None:
            with contextlib.suppress(escapement.EscapementError):
                await self._seek(name, where)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(seek)
            for _ in range(self.rng.randrange(1, 30)):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await self.crash()
        if self._record_id(name) != before:
            self.claims[name] = claim

    def _record_id(self, name: str) -> int:
        return next(
            record.id
            for record in self.world.server.registry.all_subscriptions()
            if record.name == name
        )

    async def leave(self) -> None:
        if self.inboxes:
            name, inbox = self.inboxes.pop(self.rng.randrange(len(self.inboxes)))
            await inbox.aclose()
            self.claims[name].left_ms = self.world.clock.now_ms()

    async def consume(self) -> None:
        # First look into every inbox: what one of them acknowledges may have been handed to
        # another before, after a timeout.
        tables = [(name, inbox, await arrived(inbox)) for name, inbox in self.inboxes]
        found = [(name, message) for name, _, messages in tables for message in messages]
        for name, message in sorted(found, key=lambda pair: pair[1].attempt):
            self.check(self.claims[name], message)
        for name, inbox, messages in tables:
            kept = [m.id.offset for m in messages if self.rng.random() < 0.6]
            if kept:
                await inbox.ack(kept, durable=True)
                self.claims[name].acked.update(kept)
        for name, inbox, messages in tables:
            acked = self.claims[name].acked
            given = [m.id for m in messages if m.id.offset not in acked]
            given = [id for id in given if self.rng.random() < 0.5]
            if given:
                delay = self.rng.choice([None, timedelta(0), timedelta(seconds=90)])
                back = self.rng.choice([inbox.nack, inbox.nack, inbox.release])
                await back(given, delay)
            kept = [m.id for m in messages if m.id.offset not in acked and m.id not in given]
            if kept and self.rng.random() < 0.3:
                assert await inbox.extend(kept, timedelta(seconds=100)) <= len(kept)

    def check(self, claim: Claim, message: escapement.Message) -> None:
        offset, now_ms = message.id.offset, self.world.clock.now_ms()
        value, due_ms = self.published[offset][0], message.due_ms
        assert message.value == value
        assert due_ms == self.due_ms(claim, offset), f"{offset} was not due then"
        assert claim.covers(offset, due_ms), f"{offset} was none of its business"
        assert offset not in claim.acked, f"{offset} was acknowledged"
        before = claim.seen.get(offset, 0)
        if before:
            assert message.redelivered, f"{offset} came again, unmarked"
        elif message.redelivered:
            # Perhaps falsely, after a crash or from an inbox nobody looked into.
            first_ms = self.first_ms.get(offset, due_ms)
            assert message.attempt > 1 or first_ms <= max(self.doubtful_ms, claim.left_ms)
        claim.seen[offset] = before + 1
        assert due_ms <= now_ms, f"{offset} is early"

    def due_ms(self, claim: Claim, offset: int) -> int:
        return claim.kept.get(offset, self.published[offset][1])

    async def reschedule(self) -> None:
        """Some of what there is, and something that there is not."""
        count, delay = self.rng.choice([1, 3, 10]), self.rng.choice([0, 5, 300, 90_000])
        named = [self.rng.randrange(len(self.published) + 1) for _ in range(count)]
        due_ms = self.world.clock.now_ms() + delay * 1000
        await self.look()
        outcomes = await self.broker.reschedule(named, delay=timedelta(seconds=delay), topic=TOPIC)
        for outcome in {outcome.id.offset: outcome for outcome in outcomes}.values():
            offset = outcome.id.offset
            if outcome.fate is escapement.Fate.UNKNOWN:
                assert offset not in self.published or self.is_forgotten(offset)
                continue
            assert offset in self.published
            assert (offset in self.cancelled) == (outcome.fate is escapement.Fate.CANCELLED)
            if not outcome.done:
                continue
            for name, claim in self.claims.items():
                if name in outcome.handed:
                    claim.kept[offset] = self.due_ms(claim, offset)
            value, before_ms = self.published[offset]
            self.published[offset] = (value, due_ms)
            self.first_ms[offset] = min(self.first_ms.get(offset, before_ms), due_ms)

    async def cancel(self) -> None:
        """Some of what there is, and something that there is not."""
        count = self.rng.choice([1, 3, 10])
        named = [self.rng.randrange(len(self.published) + 1) for _ in range(count)]
        for outcome in await self.broker.cancel(named, topic=TOPIC):
            offset = outcome.id.offset
            known = offset in self.published
            assert known == (outcome.fate is not escapement.Fate.UNKNOWN)
            for name, claim in self.claims.items():
                assert name in outcome.handed or offset not in claim.acked
                if outcome.done and name not in outcome.handed:
                    claim.spared.add(offset)
            if outcome.done:
                self.cancelled.add(offset)
            elif known:
                assert set(outcome.handed) == set(self.claims)

    def is_forgotten(self, offset: int) -> bool:
        """Whether the log need not have it any more."""
        return offset < self.begin and all(
            offset in claim.acked | claim.lucky
            or not claim.covers(offset, self.due_ms(claim, offset))
            for name, claim in self.claims.items()
            if name != MORTAL  # what is buried is done
        )

    async def forget(self) -> None:
        """The log goes on in other tables and forgets the old ones, or dies half-way."""
        await self.broker.admin("namespaces.update", namespace="t/n", policy={"retention_ms": 0})
        await self.world.checkpoint()
        works = self.world.server.works
        await works.housekeeper.set_parallelism(5 - works.log.current.parallelism)
        steps = self.rng.choice([40, 40, 40, self.rng.randrange(40)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(works.forgetter.round)
            for _ in range(steps):
                await self.world.clock.advance(ms=50)
            nursery.cancel_scope.cancel()
        if steps < 40:
            await self.crash()

    async def look(self) -> None:
        """See where the log begins now: the broker forgets by itself too."""
        self.begin = len(self.published)
        async for page in self.broker.read(TOPIC):
            self.begin = int(page.offsets[0])
            break

    async def checkpoint(self) -> None:
        await self.world.checkpoint()

    async def policy(self) -> None:
        await self.broker.admin(
            "namespaces.enable_delayed_message",
            namespace="t/n",
            granularity_ms=self.rng.choice([10_000, 300_000, 86_400_000]),
            tick_ms=self.rng.choice([10, 1000, 10_000]),
        )

    async def crash(self) -> None:
        await self.world.crash()
        self.doubtful_ms = self.world.clock.now_ms()
        await self._again()

    async def crash_in_checkpoint(self) -> None:
        """The checkpoint ends between any two of its steps, and with it the broker."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.world.checkpoint)
            for _ in range(self.rng.randrange(1, 16)):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await self.crash()

    async def restart(self) -> None:
        await self.world.stop()
        await self._again()

    async def lose_index(self) -> None:
        await self.world.crash()
        self.doubtful_ms = self.world.clock.now_ms()
        for path in self.world.index_directory.iterdir():
            path.unlink()
        await self._again()

    async def _again(self) -> None:
        self.inboxes.clear()
        await self.world.restart()
        await self.close()
        await self.open()

    async def buried(self, name: str) -> set[int]:
        """What is in the dead-letter topic of a subscription, each once."""
        rows = await self.broker.admin("dlq.list", topic=TOPIC, subscription=name, count=1000)
        offsets = [row["original_offset"] for row in rows]
        assert len(set(offsets)) == len(offsets), f"{name}: buried twice"
        return set(offsets)

    # -- the end ---------------------------------------------------------------------

    async def drain(self) -> None:
        """Everything is delivered without further traffic (invariant 4)."""
        await self.close()
        await self.open()
        for name, claim in self.claims.items():
            async with self.broker.consumer(TOPIC, name, permits=50) as inbox:
                for _ in range(3):
                    await self.world.clock.advance(days=2)
                    while messages := await arrived(inbox):
                        for message in messages:
                            self.check(claim, message)
                        offsets = [m.id.offset for m in messages]
                        await inbox.ack(offsets, durable=True)
                        claim.acked.update(offsets)
            wanted = {o for o in self.published if claim.covers(o, self.due_ms(claim, o))}
            done = claim.acked | await self.buried(name)
            assert done <= wanted
            assert wanted - claim.lucky <= done, f"{name}: lost {sorted(wanted - done)}"
        stats = await self.broker.admin("topics.stats", topic=TOPIC)
        assert stats["next_offset"] == len(self.published)


WEIGHTED = {
    "publish": 10,
    "post": 3,
    "advance": 8,
    "consume": 12,
    "subscribe": 4,
    "seek": 3,
    "crash_in_seek": 1,
    "leave": 2,
    "cancel": 3,
    "reschedule": 4,
    "checkpoint": 4,
    "forget": 3,
    "policy": 2,
    "crash": 2,
    "crash_in_checkpoint": 3,
    "restart": 1,
    "lose_index": 1,
}


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_random_life_keeps_the_invariants(
    mock_clock: trio.testing.MockClock, seed: int
) -> None:
    """Invariants 1 to 7, P4 to P6, V1 to V3."""
    rng = random.Random(seed)
    async with testing.start(config=TIGHT) as world:
        life = Life(world, rng)
        await life.open()
        try:
            for _ in range(STEPS):
                (name,) = rng.choices(list(WEIGHTED), list(WEIGHTED.values()))
                await getattr(life, name)()
            await life.drain()
        except BaseException:
            print(f"replay this with ESCAPEMENT_SEED={seed}")
            raise
        finally:
            await life.close()
