"""Random workloads of groups, compared with a naive model of all acknowledgements (Q10).

Each seed is a workload: messages with and without a group are published, acknowledged and
cancelled, groups are closed and deleted, subscriptions seek, are deleted and created again,
checkpoints are written, and the broker crashes during any of these steps. After each step exactly
the follow-ups of the model have fired, each once. ``ESCAPEMENT_SEED=n`` replays one workload.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import trio

import escapement
from escapement import FollowUp, GroupClosed, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.testing import World, arrived
from support.seeds import play, seeds

STEPS = 30
NAMES = ("a", "b", "c")
KINDS = {"s": "shared", "r": "shared", "e": "exclusive"}
HURRIED = Settings(heartbeat_s=None, close_timeout_s=0)
NEVER_MS = 1 << 62


@dataclass
class Subscription:
    """One subscription. A seek, or a new subscription of its name, replaces it by another."""

    kind: str
    start_offset: int
    start_due_ms: int
    acked: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)  # cancelled after their delivery


@dataclass
class Completion:
    subscription: str
    serves: Subscription | None  # None: its subscription was deleted
    number: int
    fired: bool = False


@dataclass
class Group:
    members: set[int] = field(default_factory=set)
    completions: list[Completion] = field(default_factory=list)


@dataclass
class Model:
    due_ms: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    groups: dict[str, Group] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    fired: list[int] = field(default_factory=list)

    def is_done(self, one: Subscription, offset: int) -> bool:
        wanted = offset >= one.start_offset
        if one.kind == "shared":
            wanted = wanted or self.due_ms[offset] >= one.start_due_ms
        gone = offset in self.cancelled and offset not in one.kept
        return offset in one.acked or not wanted or gone

    def left(self, group: Group, one: Subscription) -> int:
        return sum(not self.is_done(one, offset) for offset in group.members)

    def fire(self) -> None:
        for group in self.groups.values():
            for completion in group.completions:
                if completion.fired or completion.serves is None:
                    continue
                if not self.left(group, completion.serves):
                    completion.fired = True
                    self.fired.append(completion.number)

    def replace(self, name: str, new: Subscription | None, *, sought: bool) -> None:
        old = self.subscriptions.pop(name)
        if new is not None:
            self.subscriptions[name] = new
        for group in self.groups.values():
            for completion in group.completions:
                if completion.serves is old:
                    completion.serves = new if sought else None


class Workload:
    """The broker and its model."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.model = Model()
        self.sequence = 0
        self.number = 0

    async def do(self, work: Callable[[escapement.Broker], Awaitable[None]]) -> None:
        """Run idempotent work, sometimes after an attempt that a crash interrupts."""
        if self.rng.random() < 0.3:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._attempt, work)
                for _ in range(self.rng.randrange(120)):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await self.world.crash()
            await self.world.restart()
        async with self.world.connect() as broker:
            await work(broker)

    async def _attempt(self, work: Callable[[escapement.Broker], Awaitable[None]]) -> None:
        with suppress(escapement.EscapementError, ExceptionGroup):
            async with self.world.connect(settings=HURRIED) as broker:
                await work(broker)

    # -- steps -----------------------------------------------------------------

    async def publish(self) -> None:
        count = self.rng.randrange(1, 6)
        groups = [self.rng.choice([*NAMES, None]) for _ in range(count)]
        if self.rng.random() < 0.3:
            groups = [groups[0]] * count
        delays = [timedelta(minutes=self.rng.choice([0, 0, 10, 60])) for _ in range(count)]
        closed = {name for name, group in self.model.groups.items() if group.completions}
        sequence, refused = self.sequence, bool(closed.intersection(groups))
        now_ms = self.world.clock.now_ms()

        async def work(broker: escapement.Broker) -> None:
            producer = await broker.producer("t", name="p")
            try:
                await producer.send_many(
                    [b"x"] * count, groups=groups, delay=delays, sequence=sequence
                )
            except GroupClosed:
                assert refused
            else:
                assert not refused

        await self.do(work)
        if refused:
            return
        self.sequence += count
        for group, delay in zip(groups, delays, strict=True):
            offset = len(self.model.due_ms)
            self.model.due_ms.append(now_ms + delay // timedelta(milliseconds=1))
            if group is not None:
                self.model.groups.setdefault(group, Group()).members.add(offset)

    async def acknowledge(self) -> None:
        if not self.model.subscriptions:
            return
        name = self.rng.choice(list(self.model.subscriptions))
        one = self.model.subscriptions[name]
        async with (
            self.world.connect() as broker,
            broker.consumer("t", name, kind=one.kind) as inbox,
        ):
            offsets = [message.offset for message in await arrived(inbox)]
        share = self.rng.choice([0.3, 0.7, 1.0])
        some = [offset for offset in offsets if self.rng.random() < share]

        async def work(broker: escapement.Broker) -> None:
            async with broker.consumer("t", name, kind=one.kind) as inbox:
                await inbox.ack(some, durable=True)

        await self.do(work)
        one.acked.update(some)

    async def cancel(self) -> None:
        known = range(len(self.model.due_ms))
        some = [offset for offset in known if self.rng.random() < 0.15]
        if not some:
            return
        answers: list[escapement.Outcomes] = []

        async def work(broker: escapement.Broker) -> None:
            answers.append(await broker.cancel(some, topic="t"))

        await self.do(work)
        for offset, outcome in zip(some, answers[-1], strict=True):
            if outcome.done and offset not in self.model.cancelled:
                self.model.cancelled.add(offset)
                for name in outcome.handed:
                    self.model.subscriptions[name].kept.add(offset)

    async def close(self) -> None:
        if not self.model.subscriptions:
            return
        name = self.rng.choice(NAMES)
        subscription = self.rng.choice(list(self.model.subscriptions))
        group = self.model.groups.setdefault(name, Group())
        one = self.model.subscriptions[subscription]
        known = [completion for completion in group.completions if completion.serves is one]
        number = known[0].number if known else self.number
        then = FollowUp(b"%d" % number, "after")

        async def work(broker: escapement.Broker) -> None:
            await broker.groups.close("t", name, subscription, then)

        await self.do(work)
        if not known:
            self.number += 1
            group.completions.append(Completion(subscription, one, number))

    async def delete(self) -> None:
        if not self.model.groups:
            return
        name = self.rng.choice(list(self.model.groups))

        async def work(broker: escapement.Broker) -> None:
            with suppress(escapement.NotFound):
                await broker.groups.delete("t", name)

        await self.do(work)
        del self.model.groups[name]

    async def seek(self) -> None:
        if not self.model.subscriptions:
            return
        name = self.rng.choice(list(self.model.subscriptions))
        to = self.rng.choice(["earliest", "latest", "offset"])
        end = len(self.model.due_ms)
        offset = {"earliest": 0, "latest": end, "offset": self.rng.randint(0, end)}[to]
        position = f"offset:{offset}" if to == "offset" else to

        async def work(broker: escapement.Broker) -> None:
            await broker.admin(
                "subscriptions.seek", topic="t", subscription=name, position=position
            )

        await self.do(work)
        later_ms = self.world.clock.now_ms() + 1
        start_due_ms = {"earliest": 0, "latest": later_ms, "offset": NEVER_MS}[to]
        new = Subscription(KINDS[name], offset, start_due_ms)
        self.model.replace(name, new, sought=True)

    async def add_or_delete_subscription(self) -> None:
        name = self.rng.choice(list(KINDS))
        if name in self.model.subscriptions:

            async def leave(broker: escapement.Broker) -> None:
                with suppress(escapement.NotFound):
                    await broker.admin("subscriptions.delete", topic="t", subscription=name)

            await self.do(leave)
            self.model.replace(name, None, sought=False)
            return

        async def come(broker: escapement.Broker) -> None:
            with suppress(escapement.AlreadyExists):
                await broker.admin(
                    "subscriptions.create", topic="t", subscription=name, kind=KINDS[name]
                )

        await self.do(come)
        start = len(self.model.due_ms), self.world.clock.now_ms() + 1
        self.model.subscriptions[name] = Subscription(KINDS[name], *start)

    async def pass_time(self) -> None:
        await self.world.clock.advance(minutes=self.rng.choice([1, 15, 61]))

    async def checkpoint(self) -> None:
        await self.world.checkpoint()

    # -- check -------------------------------------------------------------------

    async def check(self) -> None:
        self.model.fire()
        await self.world.clock.settle()
        async with self.world.connect() as broker:
            found: list[int] = []
            with suppress(escapement.NotFound):
                found = [int(m.value) async for page in broker.read("after") for m in page]
            assert sorted(found) == sorted(self.model.fired)
            groups = {one.name: one for one in await broker.groups.list("t")}
        wanted = {n: g for n, g in self.model.groups.items() if g.members or g.completions}
        assert groups.keys() == wanted.keys()
        for name, group in wanted.items():
            assert groups[name].messages == len(group.members)
            for is_, ought in zip(groups[name].completions, group.completions, strict=True):
                assert is_.subscription == ought.subscription
                if ought.fired:
                    assert is_.state == "fired"
                elif ought.serves is None:
                    assert is_.state == "void"
                else:
                    assert is_.state == "waiting"
                    assert is_.remaining == self.model.left(group, ought.serves)


WEIGHTED = {
    "publish": 8,
    "acknowledge": 8,
    "cancel": 3,
    "close": 5,
    "delete": 2,
    "seek": 2,
    "add_or_delete_subscription": 2,
    "pass_time": 3,
    "checkpoint": 2,
}


@pytest.mark.parametrize("seed", seeds(range(12)))
async def test_random_workload_of_groups_fires_the_expected_follow_ups(
    mock_clock: trio.testing.MockClock, seed: int
) -> None:
    """Q10."""
    rng = random.Random(seed)
    config = BrokerConfig(ack_wait_ms=10**11, seed=0)
    async with testing.start(config=config) as world:
        workload = Workload(world, rng)
        async with world.connect() as broker:
            await broker.admin("topics.create", topic="t")
            policy = {"group_retention_ms": "366d"}
            await broker.admin("topics.update", topic="t", policy=policy)
        for _ in range(2):
            await workload.add_or_delete_subscription()
        await play(seed, rng, workload, WEIGHTED, STEPS, workload.check)
