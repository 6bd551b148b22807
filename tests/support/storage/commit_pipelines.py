"""A commit pipeline as a broker opens it, with faults that a test chooses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import trio

from escapement.errors import EscapementError, OutcomeUnknown
from escapement.message import NO_TIMES, Blobs, MessageBatch, Times
from escapement.storage import lease, members, schema
from escapement.storage.blocking import Run, inline
from escapement.storage.bundles import set_bundle_count
from escapement.storage.catalog import catalog
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.group import Group
from escapement.storage.commit.items import Append
from escapement.storage.commit.lane import State
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.engine.base import (
    Connection,
    Engine,
    Params,
    Result,
    Row,
    Step,
    TransactionAborted,
)
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.journal import journal
from escapement.storage.lease import Identity, Lease
from escapement.storage.log.generation import Generation
from escapement.storage.log.log import Log
from escapement.storage.state.state import load_state

LEASE_MS = 600_000


class HandClock:
    """A wall clock and a lease clock that a test sets."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now

    def lease_ms(self) -> int:
        return self.now


class Crash(BaseException):
    """Raised to end the process at this step."""


def no_fault(step: str) -> None:
    """Do nothing: the step succeeds."""


class FaultyEngine:
    """An engine that calls ``before`` before each step, and ``after`` after each COMMIT.

    A step is "connect", "begin", "snapshot", "commit" or the beginning of a statement. The calls
    may raise. ``TransactionAborted`` rolls back. Any other exception also loses the connection,
    as a network failure or a crash would.
    """

    def __init__(
        self,
        engine: Engine,
        before: Callable[[str], None] = no_fault,
        after: Callable[[str], None] = no_fault,
    ) -> None:
        self._engine = engine
        self.before = before
        self.after = after
        self.keep_lost = False  # a lost connection stays open, as behind a broken network
        self.kept: list[Connection] = []  # such connections; without a reference they would close
        self.kind = engine.kind
        self.is_shared = engine.is_shared
        self.location = engine.location
        self.dialect = engine.dialect
        self.lock_wait_s = engine.lock_wait_s
        self.max_lanes = engine.max_lanes

    def connect(self) -> Connection:
        self.before("connect")
        return FaultyConnection(self, self._engine.connect())

    def limited(self, silence_s: float) -> FaultyEngine:
        return self

    def check_fitness(self) -> None:
        self._engine.check_fitness()

    def kill(self, connection_ids: Sequence[int]) -> None:
        self._engine.kill(connection_ids)

    def close(self) -> None:
        self._engine.close()


class FaultyConnection:
    """A connection of a :class:`FaultyEngine`."""

    def __init__(self, engine: FaultyEngine, connection: Connection) -> None:
        self._engine = engine
        self._connection = connection
        self.id = connection.id
        self._lost = False

    @property
    def ended(self) -> bool:
        return self._lost or self._connection.ended

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        self._ask(sql)
        return self._connection.execute(sql, params, into)

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        self._ask(sql)
        return self._connection.execute_many(sql, rows)

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        for step in steps:
            self._ask(step.sql)
        return self._connection.execute_all(steps)

    def begin(self) -> None:
        self._ask("begin")
        self._connection.begin()

    def snapshot(self) -> None:
        self._ask("snapshot")
        self._connection.snapshot()

    def commit(self) -> None:
        self._ask("commit")
        self._connection.commit()
        self._ask("commit", self._engine.after)

    def rollback(self) -> None:
        if not self._lost:
            self._connection.rollback()

    def close(self) -> None:
        if not (self._lost and self._engine.keep_lost):
            self._connection.close()

    def _ask(self, step: str, fault: Callable[[str], None] | None = None) -> None:
        try:
            (fault or self._engine.before)(step)
        except TransactionAborted:
            self._connection.rollback()
            raise
        except BaseException:
            self._lost = True
            if self._engine.keep_lost:
                self._engine.kept.append(self._connection)
            else:
                self._connection.close()
            raise


class Once:
    """A fault at the first steps that begin with ``step``, after ``arm``."""

    def __init__(self, step: str, error: BaseException, times: int = 1) -> None:
        self._step = step
        self._error = error
        self._times = times
        self.left = 0

    def arm(self) -> None:
        self.left = self._times

    def __call__(self, step: str) -> None:
        if self.left and step.startswith(self._step):
            self.left -= 1
            raise self._error


class AtStep:
    """A fault at the step of that number; it counts all steps."""

    def __init__(self, number: int, error: BaseException) -> None:
        self.number = number
        self.error = error
        self.count = 0

    def __call__(self, step: str) -> None:
        self.count += 1
        if self.count == self.number:
            raise self.error


@dataclass
class Ticket:
    """The outcome of one append."""

    topic_id: int
    payloads: list[bytes]
    offset: int | None = None
    error: EscapementError | None = None
    done: trio.Event = field(default_factory=trio.Event)

    def fail(self, error: EscapementError) -> None:
        assert not self.done.is_set(), "an append ended twice"
        self.error = error
        self.done.set()

    def confirm(self, offset: int) -> None:
        assert not self.done.is_set(), "an append ended twice"
        self.offset = offset
        self.done.set()


class House:
    """A pipeline, its log, and a record of its commits and states."""

    def __init__(
        self, engine: Engine, held: Lease, clock: HandClock, run: Run, options: dict[str, Any]
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.lease = held
        self.scope = trio.CancelScope()  # of the pipeline, if it shares transactions
        self.ended: EscapementError | None = None  # the error that ended that pipeline
        with self.connection() as connection:
            self.log = Log.open(engine, connection, self.lease, 2, clock.now_ms())
            self.state = load_state(connection, held.bundle_id)
        self.groups: list[Group] = []
        self.states: list[State] = []
        self._progress = trio.lowlevel.ParkingLot()
        self.tickets: list[Ticket] = []
        self.on_group: Callable[[Group], None] = lambda group: None
        self.pipeline = CommitPipeline(
            engine,
            self.log,
            self.lease,
            clock,
            run,
            self._committed,
            journal_ends=self.state.journal_ends,
            on_state=self._changed,
            **options,
        )

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        connection = self.engine.connect()
        try:
            yield connection
        finally:
            connection.close()

    async def topic(self, name: str) -> int:
        """Create and open a topic, and return its id."""

        def create(connection: Connection) -> catalog.TopicRecord:
            now_ms = self.clock.now_ms()
            there = list(catalog.read_namespaces(connection))
            namespace = (
                there[0] if there else catalog.create_namespace(connection, "t", "n", now_ms)
            )
            bundle_id = self.lease.bundle_id
            return catalog.create_topic(connection, namespace.id, name, now_ms, bundle_id)

        record = await self.pipeline.transact(create)
        self.pipeline.open_topic(record.id, 0)
        return record.id

    def append(
        self, topic_id: int, *payloads: bytes, times: Times = NO_TIMES, **more: Any
    ) -> Ticket:
        """Submit a batch of these payloads."""
        ticket = Ticket(topic_id, list(payloads))
        body = MessageBatch(Blobs.of(payloads)).encode()
        self.pipeline.submit(
            Append(
                topic_id,
                body,
                len(payloads),
                times,
                context=ticket,
                fail=ticket.fail,
                **more,
            )
        )
        self.tickets.append(ticket)
        return ticket

    def _committed(self, group: Group) -> None:
        self.groups.append(group)
        for topic in group.topics:
            for append, base in zip(topic.appends, topic.base_offsets, strict=True):
                append.context.confirm(base)
        self._progress.unpark_all()
        self.on_group(group)

    def _changed(self, state: State) -> None:
        self.states.append(state)
        self._progress.unpark_all()

    async def until(self, state: State) -> None:
        """Wait for the pipeline to be in ``state``."""
        while self.pipeline.state is not state:
            await self._progress.park()

    async def more_groups(self, count: int) -> None:
        """Wait for ``count`` more groups to be committed."""
        goal = len(self.groups) + count
        while len(self.groups) < goal:
            await self._progress.park()


@contextlib.asynccontextmanager
async def committing(
    engine: Engine,
    *,
    owner: str = "one",
    clock: HandClock | None = None,
    run: Run = inline,
    **options: Any,
) -> AsyncIterator[House]:
    """Run a pipeline, and cancel it at the end, as a broker does that stops at once."""
    clock = clock or HandClock()
    schema.migrate(engine)
    held = lease.acquire(engine, Identity(owner, owner), LEASE_MS, clock)
    house = House(engine, held, clock, run, options)
    async with trio.open_nursery() as nursery:
        await nursery.start(house.pipeline.run)
        yield house
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def sharing(
    engine: Engine,
    count: int = 2,
    *,
    run: Run = inline,
    connections: int = 2,
    max_commits_per_second: float | None = None,
) -> AsyncIterator[tuple[list[House], trio.CancelScope]]:
    """Run the pipelines of several bundles of a process. They share transactions.

    Each bundle has another epoch: one more than its number, if it is taken for the first time.
    Yields them, and the scope that ends the sharing. If a pipeline ends, the others go on.
    """
    clock = HandClock()
    schema.migrate(engine)
    set_bundle_count(engine, count)
    member = members.register(engine, Identity("one", "one"), LEASE_MS, clock)
    shared = SharedWriter(engine, run, connections, max_commits_per_second)
    for bundle_id in range(count):
        for _ in range(bundle_id):
            lease.take(engine, member, clock, bundle_id)
    houses = [
        House(
            engine,
            lease.take(engine, member, clock, bundle_id),
            clock,
            run,
            {"shared": shared, "max_lanes": 1},
        )
        for bundle_id in range(count)
    ]
    scope = trio.CancelScope()

    async def share() -> None:
        with scope:
            await shared.run(member)

    async def commit(
        house: House, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        try:
            with house.scope:
                await house.pipeline.run(task_status)
        except EscapementError as error:
            house.ended = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(share)
        for house in houses:
            await nursery.start(commit, house)
        yield houses, scope
        nursery.cancel_scope.cancel()


@contextlib.contextmanager
def ends_with(kind: type[BaseException]) -> Iterator[None]:
    """Expect that the ``with`` block ends with errors of this kind only."""
    try:
        yield
    except BaseExceptionGroup as ended:
        _, others = ended.split(kind)
        assert others is None
    else:
        raise AssertionError(f"it did not end with {kind.__name__}")


def stored(engine: Engine) -> dict[int, list[bytes]]:
    """Return the payloads of the log by topic, in order of offsets.

    Check that offsets have no gaps, and that the journal names exactly the rows of the log. So the
    journal must not have been trimmed.
    """
    connection = engine.connect()
    try:
        generations = connection.execute(
            "SELECT id, parallelism, created_at_ms, size_bytes FROM generations ORDER BY id"
        ).rows
        log = Log([Generation(*row) for row in generations])
        found: dict[int, list[bytes]] = {}
        keys = []
        for step in log.scan(connection, 1000):
            for row in step:
                payloads = found.setdefault(row.key.topic_id, [])
                assert row.key.base_offset == len(payloads), "a gap or an overlap in the log"
                payloads += row.content.batch().payloads.to_list()
                keys.append(row.key)
        bundles = connection.execute("SELECT bundle_id FROM leases").rows
        entries = [row.entry for (id,) in bundles for row in journal.read(connection, id)]
        named = [key for entry in entries for key in entry.rows]
        assert sorted(named) == sorted(keys), "the journal and the log do not agree"
        return found
    finally:
        connection.close()


def enter(connection: Connection, *steps: Step) -> None:
    """Execute steps, one after the other."""
    for step in steps:
        for params in step.rows:
            connection.execute(step.sql, params)


def check_promises(engine: Engine, tickets: Sequence[Ticket]) -> None:
    """Check that confirmed appends are in the log at their offsets, and failed ones are not."""
    found = stored(engine)
    confirmed = 0
    for ticket in tickets:
        there = found.get(ticket.topic_id, [])
        if ticket.offset is not None:
            assert there[ticket.offset : ticket.offset + len(ticket.payloads)] == ticket.payloads
            confirmed += len(ticket.payloads)
        elif ticket.error is not None and not isinstance(ticket.error, OutcomeUnknown):
            assert not set(ticket.payloads) & set(there), "failed, and yet in the log"
    open_ends = [t for t in tickets if t.offset is None and t.done.is_set() is False]
    unknown = [t for t in tickets if isinstance(t.error, OutcomeUnknown)]
    if not open_ends and not unknown:
        assert sum(map(len, found.values())) == confirmed


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)
