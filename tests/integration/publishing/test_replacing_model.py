"""Replace keys compared with a naive model: random sends, changes and restarts (B11)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import escapement
from escapement import AmendStatus, Replace, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing.clock import START_MS
from support.messages.received_messages import in_log

MINUTE_MS: Final = 60_000
YEAR_MS: Final = 366 * 24 * 60 * MINUTE_MS
HURRIED: Final = Settings(heartbeat_s=None, close_timeout_s=0)
CONFIG: Final = BrokerConfig(ack_wait_ms=YEAR_MS, seed=0)
KINDS: Final = {"s": "shared", "o": "shared", "e": "exclusive"}

minutes = st.integers(0, 4)
modes = st.sampled_from(["latest", "latest", "first", "debounce 3", "debounce 6"])
sent = st.tuples(st.sampled_from([None, "a", "a", "b"]), modes, minutes)
batches = st.lists(sent, min_size=1, max_size=4)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), batches),
        st.tuples(st.just("send"), batches),
        st.tuples(st.just("dying_send"), batches, st.integers(0, 40)),
        st.tuples(st.just("repeat"), st.integers(0, 99)),
        st.tuples(st.just("advance"), st.integers(1, 4)),
        st.tuples(st.just("consume"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 3)),
        st.tuples(st.just("reschedule"), st.integers(0, 3), minutes),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("restart")),
    ),
    max_size=16,
)


@dataclass
class Sent:
    """A message in the model, with its state in each subscription."""

    offset: int
    key: str | None
    published_ms: int
    since_ms: int
    due_ms: dict[str, int]
    cancelled: bool = False
    handed: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)  # the subscriptions that keep it though cancelled


class Model:
    """The expected state of all messages and subscriptions."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.messages: list[Sent] = []
        self.last: dict[str, Sent] = {}
        self.batch_at = 0  # the offset of the first message of the batch that is being published
        self.doubtful_until_ms, self.doubtful_below = 0, 0

    def had(self, message: Sent, name: str) -> bool:
        """Return whether a subscription got the message, or may have got it before a crash."""
        if name in message.handed:
            return True
        at_ms = message.due_ms[name] if KINDS[name] == "shared" else message.published_ms
        return message.offset < self.doubtful_below and at_ms <= self.doubtful_until_ms

    def pending(self, key: str, now_ms: int) -> Sent | None:
        found = self.last.get(key)
        if found is None or found.cancelled or any(self.had(found, n) for n in self.names):
            return None
        if self.names or found.due_ms[""] > now_ms or found.offset >= self.batch_at:
            return found
        return None

    def send(self, key: str | None, mode: str, delay_ms: int, now_ms: int) -> tuple[int, int, bool]:
        """Publish a message; return the offset, the replaced one and ``kept`` of its receipt."""
        new = Sent(len(self.messages), key, now_ms, now_ms, {})
        self.messages.append(new)
        due_ms, replaced = now_ms + delay_ms, -1
        old = None if key is None else self.pending(key, now_ms)
        if old is not None and mode == "first":
            new.due_ms = dict.fromkeys(["", *self.names], due_ms)
            new.cancelled = True
            return old.offset, -1, True
        if old is not None:
            old.cancelled, new.since_ms, replaced = True, old.since_ms, old.offset
        if key is not None and mode.startswith("debounce"):
            wait_ms = int(mode.removeprefix("debounce")) * MINUTE_MS
            due_ms = max(min(due_ms, new.since_ms + wait_ms), now_ms)
        new.due_ms = dict.fromkeys(["", *self.names], due_ms)
        if key is not None:
            self.last[key] = new
        return new.offset, replaced, False

    def wanted(self, name: str, now_ms: int) -> set[int]:
        return {
            one.offset
            for one in self.messages
            if name not in one.acked
            and (not one.cancelled or name in one.kept)
            and (KINDS[name] != "shared" or one.due_ms[name] <= now_ms)
        }

    def cancel(self, message: Sent) -> AmendStatus:
        having = {name for name in self.names if self.had(message, name)}
        if message.cancelled:
            return AmendStatus.DONE
        if self.names and having == set(self.names):
            return AmendStatus.DELIVERED
        message.cancelled, message.kept = True, having
        message.handed |= having
        return AmendStatus.DONE

    def reschedule(self, message: Sent, due_ms: int) -> AmendStatus:
        if message.cancelled:
            return AmendStatus.CANCELLED
        shared = {name for name in self.names if KINDS[name] == "shared"}
        having = {name for name in shared if self.had(message, name)}
        if shared and having == shared:
            return AmendStatus.DELIVERED
        message.handed |= having
        for name in {"", *self.names} - having:
            message.due_ms[name] = due_ms
        return AmendStatus.DONE


class Play:
    """One run of steps on a broker and on the model."""

    def __init__(self, world: testing.World, topic: str, names: list[str]) -> None:
        self.world = world
        self.topic = topic
        self.model = Model(names)
        self.sends: list[tuple[list[bytes], list[str]]] = []

    def connect(self, **options: Any) -> Any:
        return self.world.connect(**options)

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    async def begin(self) -> None:
        async with self.connect() as broker:
            await broker.admin("topics.create", topic=self.topic)
            policy = {"dedup_window_ms": "100d"}
            await broker.admin("topics.update", topic=self.topic, policy=policy)
            for name in self.model.names:
                await broker.admin(
                    "subscriptions.create", topic=self.topic, subscription=name, kind=KINDS[name]
                )

    async def _publish(
        self, producer: escapement.Producer, batch: list[Any]
    ) -> escapement.Receipts:
        values, dedup = self._names(batch)
        return await producer.send_many(
            values,
            delay=[timedelta(minutes=delay) for _, _, delay in batch],
            dedup=dedup,
            replace=[_replace(key, mode) for key, mode, _ in batch],
        )

    def _names(self, batch: list[Any]) -> tuple[list[bytes], list[str]]:
        """Return the values and the dedup keys of a batch that has not been stored."""
        numbers = range(len(self.model.messages), len(self.model.messages) + len(batch))
        return [b"%d" % n for n in numbers], [f"{n}" for n in numbers]

    def _stored(self, batch: list[Any]) -> list[tuple[int, int, bool]]:
        """Note in the model that a batch was stored now, and return its receipts."""
        self.sends.append(self._names(batch))
        now_ms, self.model.batch_at = self.now_ms, len(self.model.messages)
        return [self.model.send(key, mode, n * MINUTE_MS, now_ms) for key, mode, n in batch]

    async def send(self, batch: list[Any]) -> None:
        async with self.connect() as broker:
            receipts = await self._publish(await broker.producer(self.topic), batch)
        found = [
            (
                -1 if one.id is None else one.id.offset,
                -1 if one.replaced is None else one.replaced.offset,
                one.kept,
            )
            for one in receipts
        ]
        assert found == self._stored(batch)

    async def dying_send(self, batch: list[Any], ticks: int) -> None:
        """Crash the broker at some moment of a send, and find out whether it took effect."""
        async with self.connect(settings=HURRIED) as broker, trio.open_nursery() as nursery:
            nursery.start_soon(self._publish, await broker.producer(self.topic), batch)
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            await self.world.crash()
            nursery.cancel_scope.cancel()
        await self.world.restart()
        async with self.connect() as broker:
            stored = len(await in_log(broker, self.topic)) - len(self.model.messages)
        assert stored in (0, len(batch))
        if stored:
            self._stored(batch)
        self._doubt()

    async def repeat(self, which: int) -> None:
        """Send an earlier batch again, with other modes: nothing changes."""
        if self.sends:
            values, dedup = self.sends[which % len(self.sends)]
            async with self.connect() as broker:
                producer = await broker.producer(self.topic)
                again = await producer.send_many(values, dedup=dedup, replace=["a"] * len(values))
            assert again.duplicates.all()

    async def advance(self, number: int) -> None:
        await self.world.clock.advance(minutes=number)

    async def consume(self, which: int, acks: bool) -> None:
        """Receive what a subscription gets now, and acknowledge it or leave without."""
        if not self.model.names:
            return
        name = self.model.names[which % len(self.model.names)]
        async with (
            self.connect() as broker,
            broker.consumer(self.topic, name, kind=KINDS[name]) as inbox,
        ):
            got = [message.offset for message in await testing.arrived(inbox)]
            assert sorted(got) == sorted(self.model.wanted(name, self.now_ms))
            if acks:
                await inbox.ack(got, durable=True)
        for offset in got:
            self.model.messages[offset].handed.add(name)
            if acks:
                self.model.messages[offset].acked.add(name)

    def _chosen(self, back: int) -> Sent | None:
        messages = self.model.messages
        return messages[-1 - back] if back < len(messages) else None

    async def cancel(self, back: int) -> None:
        if (message := self._chosen(back)) is not None:
            async with self.connect() as broker:
                (outcome,) = await broker.cancel([message.offset], topic=self.topic)
            assert outcome.status == self.model.cancel(message)

    async def reschedule(self, back: int, delay: int) -> None:
        if (message := self._chosen(back)) is not None:
            async with self.connect() as broker:
                (outcome,) = await broker.reschedule(
                    [message.offset], topic=self.topic, delay=timedelta(minutes=delay)
                )
            due_ms = self.now_ms + delay * MINUTE_MS
            assert outcome.status == self.model.reschedule(message, due_ms)

    async def checkpoint(self) -> None:
        await self.world.checkpoint()

    async def crash(self) -> None:
        await self.world.crash()
        await self.world.restart()
        self._doubt()

    async def restart(self) -> None:
        await self.world.stop()
        await self.world.restart()
        self.model.doubtful_below = len(self.model.messages)

    def _doubt(self) -> None:
        self.model.doubtful_until_ms = self.now_ms
        self.model.doubtful_below = len(self.model.messages)

    async def end(self) -> None:
        """Let all messages fall due, and check that each is delivered or was cancelled."""
        await self.advance(20)
        for which in range(len(self.model.names)):
            await self.consume(which, True)
            await self.consume(which, True)


def _replace(key: str | None, mode: str) -> Replace | None:
    if key is None:
        return None
    if mode.startswith("debounce"):
        return Replace.debounce(key, max_wait=f"{mode.removeprefix('debounce ')}m")
    return Replace.first(key) if mode == "first" else Replace.latest(key)


async def play(engine: Engine, number: int, names: list[str], actions: list[Any]) -> None:
    # Later than all earlier runs on this database, as for a real clock.
    start_ms = START_MS + number * YEAR_MS
    async with testing.start(engine=engine, config=CONFIG, start_ms=start_ms) as world:
        run = Play(world, f"t{number}", names)
        await run.begin()
        for name, *arguments in actions:
            await getattr(run, name)(*arguments)
        await run.end()
        await world.stop()


subscriptions = st.sampled_from([["s"], ["s", "o"], ["s", "e"], ["e"], []])


@settings(max_examples=40, deadline=None)
@given(subscriptions, steps)
def test_replacing_agrees_with_a_naive_model(names: list[str], actions: list[Any]) -> None:
    """B11, B1: receipts and deliveries, also across crashes at any moment of a commit."""
    testing.run(play, SqliteEngine.in_memory(), 0, names, actions)


@pytest.fixture
def databases(mysql_url: str, tmp_path: Path) -> Callable[[], tuple[Engine, int]]:
    """Return a function that opens the database again, and counts how often it did."""
    numbers = itertools.count()
    return lambda: (open_engine(mysql_url, tmp_path), next(numbers))


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(names=subscriptions, actions=steps)
def test_replacing_agrees_with_a_naive_model_on_mysql(
    databases: Callable[[], tuple[Engine, int]], names: list[str], actions: list[Any]
) -> None:
    """B11: as above."""
    engine, number = databases()
    testing.run(play, engine, number, names, actions)
