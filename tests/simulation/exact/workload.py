"""The broker, its clients and the model of a random workload, and what every step needs.

A tap on each inbox notes every delivery at once. The workload checks deliveries after it has read
the log, and the clock does not move in between.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

import escapement
from escapement.check.check import Check
from escapement.testing import World
from histories.history import History
from simulation.database import Server, SimulatedEngine
from simulation.disk import Disk
from simulation.exact.arrival import Arrival
from simulation.exact.checks.arrivals import arrive, check_order
from simulation.exact.checks.due_order import check_order_of_keys
from simulation.exact.checks.log_order import check_passed
from simulation.exact.checks.priority_order import check_ranks, see_ready
from simulation.exact.model import (
    ACK_WAIT_MS,
    KINDS,
    NEVER_MS,
    NO_ACK_WAIT,
    PROBE_MS,
    WITH_DEAD_LETTERS,
    Model,
)
from support.tapped_inbox import Delivered, tap

T = TypeVar("T")
TOPIC = "t/n/x"
# The longest time of a step, during an outage too.
_TIMEOUT_MS = 120_000


class Workload:
    """The broker, its clients, and the model."""

    def __init__(
        self,
        world: World,
        database: Server,
        engine: SimulatedEngine,
        disks: list[Disk],
        nursery: trio.Nursery,
        rng: random.Random,
        history: History,
    ) -> None:
        self.world = world
        self.database = database
        self.engine = engine  # the way of the brokers to the database
        self.disks = disks  # of two brokers that take turns; the first one runs
        self.nursery = nursery
        self.rng = rng
        self.history = history
        self.model = Model()
        self.model.policies[""] = {}
        self.model.started_ms = self.now_ms
        self.inboxes: list[tuple[str, escapement.Inbox, Any]] = []
        self.outage_end_ms = -PROBE_MS  # the end of the outage, by the monotonic clock
        self.unanswered: list[Callable[[], Awaitable[None]]] = []  # requests without an answer
        # Seeks without an answer; the records of the next broker have it.
        self.unanswered_seeks: list[Callable[[], None]] = []
        # An arrival; None: no message is in flight any more; a time: the broker crashed then.
        self._events: list[Arrival | int | None] = []
        self._unordered: list[Arrival] = []
        self._moment = 0
        self._closing = False
        self.calm = True  # the last step had no outage and no change of the clock
        self.filling = False  # whether the index may lack messages
        self._stack = AsyncExitStack()

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    async def open(self) -> None:
        """Connect the clients."""
        self.broker, hang_up = await self.nursery.start(self._connect)
        self._stack.push_async_callback(hang_up)
        self.producers = [
            await self.broker.producer(TOPIC, name=name, linger="0ms") for name in ("one", "two")
        ]

    async def _connect(
        self,
        task_status: trio.TaskStatus[tuple[escapement.Broker, Callable[[], Awaitable[None]]]],
    ) -> None:
        """Connect in a task of its own, because connections do not end in the reverse order."""
        leaving, left = trio.Event(), trio.Event()

        async def hang_up() -> None:
            leaving.set()
            await left.wait()

        try:
            async with self.world.connect() as broker:
                task_status.started((broker, hang_up))
                await leaving.wait()
        finally:
            left.set()

    async def close(self) -> None:
        """Close all clients."""
        self.inboxes.clear()
        # Messages that a consumer returns may go to another that closes later.
        self._closing = True
        await self._stack.aclose()
        self._closing = False
        self._stack = AsyncExitStack()
        for expectation in self.model.expectations.values():
            expectation.left_ms = max(expectation.left_ms, self.now_ms)
        self._events.append(None)

    async def join(self, name: str, **options: Any) -> escapement.Inbox:
        """Add a consumer, and note its deliveries."""
        wait = None if name == NO_ACK_WAIT else timedelta(milliseconds=ACK_WAIT_MS)
        consumer = self.broker.consumer(TOPIC, name, kind=KINDS[name], ack_wait=wait, **options)
        inbox = await self._stack.enter_async_context(consumer)
        key_range = options.get("key_range")
        tap(inbox, partial(self._note, name, inbox, key_range))
        self.inboxes.append((name, inbox, key_range))
        return inbox

    def _note(
        self, name: str, inbox: escapement.Inbox, key_range: Any, delivered: list[Delivered]
    ) -> None:
        if self._closing:
            self._events.append(None)
        self.history.counts["delivered"] += len(delivered)
        for one in delivered:
            self._events.append(
                Arrival(
                    self.moment(),
                    self.now_ms,
                    len(self.model.crashes),
                    name,
                    inbox._id,
                    key_range,
                    # A consumer that leaves may have had a range.
                    self._closing
                    or any(other == name and wanted for other, _, wanted in self.inboxes),
                    self.world.clock.lease_ms() < self.outage_end_ms + PROBE_MS,
                    self._is_active(name, inbox),
                    self.model.policies[name],
                    self.model.policies[""],
                    *one,
                )
            )

    def _is_active(self, name: str, inbox: escapement.Inbox) -> bool | None:
        """Return whether a consumer is the first of its subscription; None if it is leaving."""
        consumers = [one for other, one, _ in self.inboxes if other == name]
        return inbox is consumers[0] if inbox in consumers else None

    def moment(self) -> int:
        """Return a number that grows with every event."""
        self._moment += 1
        return self._moment

    # -- between steps ---------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until the broker has nothing to do, and check everything since the last step."""
        await self.world.clock.settle()
        self.model.pass_time(self.now_ms)
        await self.catch_up()
        self.model.pass_time(self.now_ms)
        if self.filling:
            # Messages become ready in the order in which the log is read. The order of keys and of
            # the log is checked afterwards, when it is known which messages were dropped.
            self._unordered = []
            return
        if not self.unanswered:
            await self.see()  # dropped messages need not come before others
        for arrival in self._unordered:
            check_order(self.model, arrival)
            check_ranks(self.model, arrival)
        self._unordered = []
        if not self.unanswered:
            self._check_order()
            self.calm = True

    async def see(self) -> None:
        """Check what the broker did by itself. No request is without an answer."""

    def _check_order(self) -> None:
        """Check the order of arrivals, and note the ready messages of the next step."""
        for name, expectation in self.model.expectations.items():
            check_passed(self.model, expectation)
            check_order_of_keys(self.model, expectation, calm=self.calm)
            expectation.ready = {}
            ranges = [wanted for other, _, wanted in self.inboxes if other == name]
            if ranges and not any(ranges) and not expectation.in_log_order:
                keeps_order = self.model.policy(name, "order", "any") != "any"
                see_ready(self.model, expectation, self.now_ms, keeps_order=keeps_order)

    async def catch_up(self) -> None:
        """Read the log and check all arrivals since the last check."""
        await self.retry(self.read_log)
        self.check()

    def check(self) -> None:
        """Check all arrivals since the last check, if the log has no new messages."""
        events, self._events = self._events, []
        for event in events:
            if event is None:
                self.model.end_deliveries()
            elif isinstance(event, int):
                self.model.end_crash(event)
            else:
                arrive(self.model, event)
                self._unordered.append(event)

    async def read_log(self) -> None:
        """Read new messages and the beginning of the log, which the broker moves by itself.

        The log begins after its last gap. Before the gap it has only relocated messages.
        """
        begin = following = 0
        async for page in self.broker.read(TOPIC):
            for offset in page.offsets.tolist():
                begin, following = begin if offset == following else offset, offset + 1
        self.model.begin = begin if following else max(self.model.begin, self.model.end)
        # Read the end again: it may have grown.
        async for page in self.broker.read(TOPIC, self.model.end):
            self.model.pass_time(self.now_ms)
            for entry in page:
                self.model.store(entry)

    async def kill(self) -> None:
        """Kill the broker, often by a power failure of its machine."""
        self.disks[0].take_image(power_failure=self.rng.random() < 0.5)
        await self.world.crash()
        self.disks[0].restart()
        self.model.crash(self.now_ms)
        self._events.append(self.now_ms)

    # -- requests --------------------------------------------------------------------

    async def patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step, and let time pass while it waits."""
        passing = trio.CancelScope()
        self.nursery.start_soon(self._pass_time, passing)
        try:
            await step()
        finally:
            passing.cancel()

    async def _pass_time(self, passing: trio.CancelScope) -> None:
        end_ms = self.world.clock.lease_ms() + _TIMEOUT_MS
        with passing:
            await self.world.clock.settle()
            while True:
                assert self.world.clock.lease_ms() < end_ms, "the step hangs"
                await self.world.clock.advance(ms=250)
                if self.world.clock.lease_ms() >= self.outage_end_ms:
                    self.heal()

    def heal(self) -> None:
        """End the faults of the database."""
        self.database.heal()
        self.engine.is_reachable = True

    async def retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to an idempotent request; repeat it while it fails retryably."""
        while True:
            try:
                return await ask()
            except escapement.EscapementError as error:
                if not error.retryable:
                    raise
                await trio.sleep(0.4)

    async def ask_again_after_crash(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Run a request; ``recover`` repeats it if the broker crashes meanwhile."""
        self.unanswered.append(ask)
        await ask()
        self.unanswered.remove(ask)

    async def recover(self) -> None:
        """Start a broker on the state of the last one, and repeat requests without an answer."""
        before = [(name, key_range) for name, _, key_range in self.inboxes]
        self._events.append(None)
        self.heal()
        self._check_store()
        await self.serve()
        doubts, self.unanswered = self.unanswered, []
        for ask in doubts:
            await self.patiently(ask)
            await self.settle()
        for name, key_range in before:
            if self.rng.random() < 0.8:
                await self.join(name, permits=9, key_range=key_range)

    def _check_store(self) -> None:
        """Check that `escapement check` finds no damage in what the last broker has stored."""
        engine = SimulatedEngine(self.database)
        # The check asks the database for the time.
        engine.dialect = replace(engine.dialect, now_ms=str(self.now_ms))
        found = Check(engine, self.disks[0].root).run()
        # Another broker may have written checkpoints since this one wrote its index.
        bad = [one for one in found if one.is_bad and one.check != "stale index"]
        assert not bad, bad

    async def serve(self) -> None:
        """Start a broker and connect new clients, after the old ones have left."""
        await self.world.restart()
        self.model.started_ms = max(self.model.started_ms, self.now_ms)
        await self.patiently(self.close)
        await self.open()
        sights, self.unanswered_seeks = self.unanswered_seeks, []
        for see in sights:
            see()
        # The new broker does not know which messages the publish rate has counted. That includes
        # messages that the model reads only now.
        self.model.rated_from = NEVER_MS
        await self.settle()
        self.model.rated_from = self.model.end

    async def read_dead_letters(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the dead letters of a subscription by topic. Each message has one at most."""
        found: dict[str, list[dict[str, Any]]] = {}
        expectation = self.model.expectations.get(name)
        for dead_letter_topic in sorted(expectation.dead_letter_topics) if expectation else ():
            names = {"topic": TOPIC, "subscription": name, "dead_letter_topic": dead_letter_topic}
            ask = partial(self.broker.admin, "dlq.list", **names, count=1000)
            try:
                rows: list[dict[str, Any]] = await self.retry(ask)
            except escapement.NotFound:
                continue  # it has no dead letters
            assert expectation is not None
            expectation.dead_lettered |= {
                (dead_letter_topic, row["offset"]): row["original_offset"] for row in rows
            }
            assert len(set(expectation.dead_lettered.values())) == len(expectation.dead_lettered), (
                "a message has two dead letters"
            )
            found[dead_letter_topic] = rows
        return found

    async def read_all_dead_letters(self) -> None:
        """Read the dead letters of all subscriptions."""
        for name in WITH_DEAD_LETTERS:
            await self.read_dead_letters(name)


def index_on(disk: Disk) -> Path:
    """Return the directory of the index on a disk."""
    return disk.root / "index"
