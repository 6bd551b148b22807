"""Many searches at the same time, beside commits, the lease and quick looks."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import escapement
from escapement import testing
from escapement.broker.broker import Broker, BrokerConfig
from escapement.broker.front.front import Front
from escapement.broker.inspection import search
from escapement.broker.inspection.search import Sought
from escapement.broker.limits import BrokerLimits
from escapement.broker.runners import Runners
from escapement.client.connect import connect
from escapement.clock import SystemClock
from escapement.names import TopicName
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.index import KEY_MIN
from escapement.storage.lease import Identity
from escapement.testing.world import MemoryStream
from support.storage.commit_pipelines import FaultyEngine

T = TypeVar("T")

TIMEOUT_S: Final = 60
SEARCHES: Final = 40
LIMITS: Final = BrokerLimits(lease_ms=600)
TOPIC: Final = TopicName.parse("t")


class Endless:
    """The value of a property with which a comparison takes until ``release``."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.begun = trio.Event()
        self._released = threading.Event()

    def __eq__(self, other: object) -> bool:
        trio.from_thread.run_sync(self.begun.set)
        assert self._released.wait(TIMEOUT_S)
        return False

    def release(self) -> None:
        self._released.set()


class Renewals:
    """The renewals of the lease that an engine sees."""

    def __init__(self, engine: FaultyEngine) -> None:
        self._next = trio.Event()
        engine.before = self._note

    def _note(self, step: str) -> None:
        if step.startswith("UPDATE brokers SET expires_at_ms"):
            trio.from_thread.run_sync(self._renewed)

    def _renewed(self) -> None:
        self._next.set()
        self._next = trio.Event()

    async def next(self) -> None:
        await self._next.wait()


@asynccontextmanager
async def in_threads(
    engine: Engine, index: Path
) -> AsyncIterator[tuple[Broker, escapement.Broker]]:
    """Run a broker that makes its blocking calls in threads, as a server does, and a client."""
    runners = Runners.in_threads(LIMITS.commit_lanes)
    identity, config = Identity("0" * 32, "test"), BrokerConfig(limits=LIMITS)
    broker = Broker(engine, index, identity, SystemClock(), runners, config)
    front = Front.of_broker(broker)

    async def open_stream() -> MemoryStream:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(front.serve_stream, theirs)
        await trio.lowlevel.checkpoint()
        return MemoryStream(ours)

    async with trio.open_nursery() as nursery:
        await nursery.start(front.run_broker, broker)
        async with connect("escapement://memory", stream_factory=open_stream) as client:
            yield broker, client
        broker.stop()
        await broker.stopped.wait()
        nursery.cancel_scope.cancel()


async def test_lease_and_publishes_do_not_wait_for_searches(tmp_path: Path) -> None:
    """They have threads of their own, however many searches compare messages."""
    engine = FaultyEngine(SqliteEngine(tmp_path / FILE_NAME))
    renewals, endless = Renewals(engine), Endless()
    with trio.fail_after(TIMEOUT_S):
        async with (
            in_threads(engine, tmp_path / "index") as (broker, client),
            trio.open_nursery() as nursery,
        ):
            try:
                producer = await client.producer("t")
                await producer.send(b"", delay=timedelta(hours=1), properties={"p": "x"})
                topic, sought = broker.registry.topic(TOPIC), Sought(properties={"p": endless})
                for _ in range(SEARCHES):
                    nursery.start_soon(broker.select, topic, sought, KEY_MIN)
                await endless.begun.wait()
                for _ in range(3):
                    await renewals.next()
                    await producer.send(b"beside the searches")
                assert broker.holds_lease()
            finally:
                endless.release()


async def test_commits_have_threads_when_all_others_are_busy() -> None:
    """The lease and each commit lane, all at the same time."""
    lanes, released = 3, threading.Event()
    runners, met = Runners.in_threads(lanes), threading.Barrier(lanes + 1)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            try:
                for run in (runners.work, runners.looks):
                    for _ in range(SEARCHES):
                        nursery.start_soon(run, released.wait, TIMEOUT_S)
                await trio.testing.wait_all_tasks_blocked()
                async with trio.open_nursery() as commits:
                    for _ in range(lanes + 1):
                        commits.start_soon(runners.commits, met.wait, TIMEOUT_S)
            finally:
                released.set()


class Recording:
    """A runner of blocking calls that records the names of their functions and of their tasks."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    async def __call__(self, function: Callable[..., T], /, *arguments: object) -> T:
        await trio.lowlevel.checkpoint()
        task = trio.lowlevel.current_task().name
        self.calls.append((getattr(function, "__qualname__", ""), task))
        return function(*arguments)

    def tasks(self, function: str) -> list[str]:
        """Return the names of the tasks that have called the function, in order."""
        return [task for called, task in self.calls if called == function]


async def test_searches_are_answered_in_the_order_of_their_arrival(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each makes its page before the next one begins. A quick look does not wait for them."""
    monkeypatch.setattr(search, "_READ_MESSAGES", 4)
    recording, ended = Recording(), []
    async with testing.start(run=recording) as world, world.connect() as client:
        producer = await client.producer("t")
        properties = [{"n": number} for number in range(20)]
        await producer.send_many([b""] * 20, delay=timedelta(hours=1), properties=properties)
        broker, topic = world.server, world.server.registry.topic(TOPIC)

        async def ask(name: str) -> None:
            if name == "quick":
                async with broker.look():
                    peeked = await broker.peek(topic, Sought(), 3)
                assert peeked.offsets.tolist() == [0, 1, 2]
            elif name == "peek":
                async with broker.look(by_content=True):
                    peeked = await broker.peek(topic, Sought(properties={"n": 17}), 1)
                assert peeked.offsets.tolist() == [17]
            else:
                selected = await broker.select(topic, Sought(properties={"n": 18}), KEY_MIN)
                assert selected.offsets.tolist() == [18]
            ended.append(name)

        names = ["first", "peek", "third", "quick"]
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(ask, name, name=name)
                await trio.lowlevel.checkpoint()
    compared = [task for task in recording.tasks("Search._read") if task != "quick"]
    assert compared == ["first"] * 5 + ["peek"] * 5 + ["third"] * 5
    assert ended == ["quick", "first", "peek", "third"]


async def test_event_loop_reads_no_keys_for_looks(mock_clock: MockClock) -> None:
    """Also if they are in memory. The loop would read those of hundreds of looks in one turn."""
    recording = Recording()
    async with testing.start(run=recording) as world, world.connect() as client:
        producer = await client.producer("t")
        await producer.send_many([b""] * 20, delay=timedelta(hours=1), keys=["k"] * 20)
        broker, topic = world.server, world.server.registry.topic(TOPIC)

        async def peek(sought: Sought) -> None:
            assert len((await broker.peek(topic, sought, 20)).offsets) == 20

        async def forecast() -> None:
            found = await broker.forecast(topic, by_ms=60_000, within_ms=7_200_000, origin_ms=0)
            assert found.counts.sum() == 20

        async with trio.open_nursery() as nursery:
            nursery.start_soon(peek, Sought(), name="peek")
            nursery.start_soon(peek, Sought(keys=frozenset((b"k",))), name="peek by key")
            nursery.start_soon(forecast, name="forecast")
    assert {"peek", "forecast"} <= set(recording.tasks("Plan.read"))
    assert "peek by key" in recording.tasks("Plan.read_traits")
