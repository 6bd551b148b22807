"""The broker, its clients, and the model beside them; what every step needs.

Whatever is delivered is noted at the moment at which it comes, by a tap on each inbox, and
checked once the log has been read; time stands still meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import trio

import escapement
from escapement.protocol import commands as wire
from escapement.testing import World
from random_workloads.arrival import Arrival
from random_workloads.arrivals import arrive, check_order
from random_workloads.due_order import check_order_of_keys
from random_workloads.log_order import check_passed
from random_workloads.model import (
    ACK_WAIT_MS,
    KINDS,
    MORTALS,
    NEVER_MS,
    PROBE_MS,
    WITHOUT_END,
    Model,
)
from random_workloads.priority_order import check_ranks, see_ready
from support.database_outages import Outage

T = TypeVar("T")
TOPIC = "t/n/x"
# No step takes longer, whatever the database does.
_TIMEOUT_MS = 120_000


class Workload:
    """See the module's docstring."""

    def __init__(
        self, world: World, outage: Outage, nursery: trio.Nursery, rng: random.Random
    ) -> None:
        self.world = world
        self.outage = outage
        self.nursery = nursery
        self.rng = rng
        self.model = Model()
        self.model.policies[""] = {}
        self.model.started_ms = self.now_ms
        self.inboxes: list[tuple[str, escapement.Inbox, Any]] = []
        self.well_ms = -PROBE_MS  # when the outage is over; of the clock that never goes back
        self.doubts: list[Callable[[], Awaitable[None]]] = []  # asked, and not answered yet
        self.sights: list[Callable[[], None]] = []  # the same, where a look at a broker answers it
        self.stale: list[escapement.Inbox] = []  # of a broker that another has overtaken
        # None: nobody has anything any more; a time: the broker dies.
        self._events: list[Arrival | int | None] = []
        self._unordered: list[Arrival] = []
        self._moment = 0
        self._completion = False
        self.calm = True  # the last step had as much time as the clock says, and no trouble
        self._stack = AsyncExitStack()

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    async def open(self) -> None:
        self.broker, hang_up = await self.nursery.start(self._connect, self.world)
        self._stack.push_async_callback(hang_up)
        self.producers = [
            await self.broker.producer(TOPIC, name=name, linger="0ms") for name in ("one", "two")
        ]

    async def _connect(
        self,
        world: World,
        task_status: trio.TaskStatus[tuple[escapement.Broker, Callable[[], Awaitable[None]]]],
    ) -> None:
        """A connection in a task of its own: they do not end in the order of their beginnings."""
        leaving, left = trio.Event(), trio.Event()

        async def hang_up() -> None:
            leaving.set()
            await left.wait()

        try:
            async with world.connect() as broker:
                task_status.started((broker, hang_up))
                await leaving.wait()
        finally:
            left.set()

    async def begin(self) -> None:
        """What no life changes: nothing is forgotten of a group that has fired."""
        await self.open()
        policy = {"group_retention_ms": "366d"}
        await self.broker.admin("topics.update", topic=TOPIC, policy=policy)

    async def close(self) -> None:
        self.inboxes.clear()
        self._completion = True  # what one gives back another may be sent before it is closed
        await self._stack.aclose()
        self._completion = False
        self._stack = AsyncExitStack()
        for expectation in self.model.expectations.values():
            expectation.left_ms = max(expectation.left_ms, self.now_ms)
        self._events.append(None)

    async def join(self, name: str, **options: Any) -> escapement.Inbox:
        """A consumer whose messages are noted."""
        wait = None if name == WITHOUT_END else timedelta(milliseconds=ACK_WAIT_MS)
        consumer = self.broker.consumer(TOPIC, name, kind=KINDS[name], ack_wait=wait, **options)
        inbox = await self._stack.enter_async_context(consumer)
        heard, key_range = inbox.heard, options.get("key_range")

        def tap(command: wire.Command) -> None:
            if isinstance(command, wire.Deliver):
                self._note(name, inbox, key_range, command)
            heard(command)

        inbox.heard = tap  # type: ignore[method-assign]
        self.inboxes.append((name, inbox, key_range))
        return inbox

    def _note(
        self, name: str, inbox: escapement.Inbox, key_range: Any, command: wire.Deliver
    ) -> None:
        batch, count = command.decode(), len(command.offsets)
        values = batch.payloads.to_list()
        keys = [b""] * count if batch.keys is None else batch.keys.to_list()
        attempts, again = command.attempts, command.redelivered
        if self._completion:
            self._events.append(None)
        for row in range(count):
            self._events.append(
                Arrival(
                    self.moment(),
                    self.now_ms,
                    len(self.model.crashes),
                    name,
                    inbox.id,
                    key_range,
                    # Who leaves may have had a range.
                    self._completion
                    or any(other == name and wanted for other, _, wanted in self.inboxes),
                    self.world.clock.lease_ms() < self.well_ms + PROBE_MS,
                    self._is_active(name, inbox),
                    self.model.policies[name],
                    self.model.policies[""],
                    int(command.offsets[row]),
                    int(command.due_ms[row]),
                    1 if attempts is None else int(attempts[row]),
                    again is not None and bool(again[row]),
                    values[row],
                    keys[row].decode() or None,
                    50 if batch.priorities is None else int(batch.priorities[row]),
                )
            )

    def _is_active(self, name: str, inbox: escapement.Inbox) -> bool | None:
        there = [one for other, one, _ in self.inboxes if other == name]
        return inbox is there[0] if inbox in there else None

    def moment(self) -> int:
        """A number that grows with everything that happens."""
        self._moment += 1
        return self._moment

    # -- between steps ---------------------------------------------------------------

    async def settle(self) -> None:
        """Everything that follows from the steps before has happened, and is checked."""
        await self.world.clock.settle()
        self.model.pass_time(self.now_ms)
        await self.catch_up()
        self.model.pass_time(self.now_ms)
        if not self.doubts:
            await self.see()  # what was dropped need not have come before others
        for arrival in self._unordered:
            check_order(self.model, arrival)
            check_ranks(self.model, arrival)
        self._unordered = []
        if not self.doubts:
            self._look_ahead()
            self.calm = True

    async def see(self) -> None:
        """Look at what the broker did by itself, while nothing is in doubt."""

    def _look_ahead(self) -> None:
        """Check the order of what came, and note what is to come first in the next step."""
        for name, expectation in self.model.expectations.items():
            check_passed(self.model, expectation)
            check_order_of_keys(self.model, expectation, calm=self.calm)
            expectation.heads = {}
            ranges = [wanted for other, _, wanted in self.inboxes if other == name]
            if ranges and not any(ranges) and not expectation.in_log_order:
                keeps_order = self.model.policy(name, "order", "any") != "any"
                see_ready(self.model, expectation, self.now_ms, keeps_order=keeps_order)

    async def catch_up(self) -> None:
        """Check what has come so far, before more is asked."""
        await self.asked(self.look)
        self.check()

    def check(self) -> None:
        """The same where nothing can have been published."""
        events, self._events = self._events, []
        for event in events:
            if event is None:
                self.model.let_go()
            elif isinstance(event, int):
                self.model.die(event)
            else:
                arrive(self.model, event)
                self._unordered.append(event)

    async def look(self) -> None:
        """See what is in the log, and where it begins now: the broker forgets by itself.

        Of what lies before it has what was still to be done; it begins behind the last gap.
        """
        begin = following = 0
        async for page in self.broker.read(TOPIC):
            for offset in page.offsets.tolist():
                begin, following = begin if offset == following else offset, offset + 1
        self.model.begin = begin if following else max(self.model.begin, self.model.end)
        # Once more: it may have grown.
        async for page in self.broker.read(TOPIC, self.model.end):
            self.model.pass_time(self.now_ms)
            for entry in page:
                self.model.store(entry)

    async def die(self) -> None:
        """The broker is killed."""
        await self.world.crash()
        self.model.crash(self.now_ms)
        self._events.append(self.now_ms)

    # -- asking ----------------------------------------------------------------------

    async def patiently(self, step: Callable[[], Awaitable[None]]) -> None:
        """Carry out a step, and let time pass while it waits for something."""
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
                assert self.world.clock.lease_ms() < end_ms, "it hangs"
                await self.world.clock.advance(ms=250)
                if self.world.clock.lease_ms() >= self.well_ms:
                    self.outage.over()

    async def asked(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to something that may be asked again, as long as that is refused."""
        while True:
            try:
                return await ask()
            except escapement.EscapementError as error:
                if not error.retryable:
                    raise
                await trio.sleep(0.4)

    async def in_doubt(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask something; if the broker dies meanwhile, ask again."""
        self.doubts.append(ask)
        await ask()
        self.doubts.remove(ask)

    async def again(self) -> None:
        """A broker starts on what the one before has left."""
        before = [(name, key_range) for name, _, key_range in self.inboxes]
        self._events.append(None)
        self.outage.over()
        await self.serve(self.close)
        doubts, self.doubts = self.doubts, []
        for ask in doubts:
            await self.patiently(ask)
            await self.settle()
        for name, key_range in before:
            if self.rng.random() < 0.8:
                await self.join(name, permits=9, key_range=key_range)

    async def serve(self, leave: Callable[[], Awaitable[None]] | None = None) -> None:
        """A broker starts, and has new clients; the old ones leave before."""
        await self.world.restart()
        self.model.started_ms = max(self.model.started_ms, self.now_ms)
        if leave is not None:
            await self.patiently(leave)
        await self.open()
        sights, self.sights = self.sights, []
        for see in sights:
            see()
        # What was spent is forgotten, also on what is only seen now.
        self.model.rated_from = NEVER_MS
        await self.settle()
        self.model.rated_from = self.model.end

    async def dead_letters(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """A subscription's dead letters, by the topic they lie in; each message died once."""
        found: dict[str, list[dict[str, Any]]] = {}
        expectation = self.model.expectations.get(name)
        for grave in sorted(expectation.graves) if expectation else ():
            names = {"topic": TOPIC, "subscription": name, "dead_letter_topic": grave}
            ask = partial(self.broker.admin, "dlq.list", **names, count=1000)
            try:
                rows: list[dict[str, Any]] = await self.asked(ask)
            except escapement.NotFound:
                continue  # nothing was buried there
            assert expectation is not None
            expectation.dead_lettered |= {
                (grave, row["offset"]): row["original_offset"] for row in rows
            }
            assert len(set(expectation.dead_lettered.values())) == len(expectation.dead_lettered), (
                "buried twice"
            )
            found[grave] = rows
        return found

    async def all_dead_letters(self) -> None:
        """See everybody's."""
        for name in MORTALS:
            await self.dead_letters(name)
