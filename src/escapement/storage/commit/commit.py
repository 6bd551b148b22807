"""The commit pipeline, which makes everything durable in group commits.

An *item* (storage/commit/items.py) is something to make durable: published messages,
acknowledgements, attempts, or SQL statements such as a change of the catalog. A *group commit*, or
group, is one transaction for many items. The pipeline has a few *lanes* (storage/commit/lane.py).
Each lane is a task with a database connection and a queue of items. A topic belongs to one lane,
``topic_id % lanes``, so its groups commit in order. Lanes commit concurrently.

The way of a message: ``submit(Append)`` → a group of its lane, which assigns its offset and its
``due_ms`` → COMMIT → ``on_commit(group)``. Invariants:

- ``on_commit`` is called exactly once for each durable group, synchronously, and for the groups of
  a lane in order. It is never called for a group that is not durable (invariant 1).
- For each append, either ``on_commit`` is called with its group, or its ``fail``, and never both.
- Offsets of a topic are assigned without gaps. An offset is assigned again only if it certainly did
  not become durable.
- Nothing is written after another broker has taken the lease (invariant 8).

The number of lanes may change from one start of the broker to the next: the journal is read by
epoch first (storage/journal/journal.py), and each start has its own epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import trio

from escapement.clock import Clock
from escapement.errors import Busy, StorageReadOnly, StorageUnavailable
from escapement.storage.blocking import Run
from escapement.storage.commit.commit_wait import CommitWait
from escapement.storage.commit.group import Group
from escapement.storage.commit.items import Acks, Append, Attempts, Restate, Statement
from escapement.storage.commit.lane import Lane, State, Waiting
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.commit.writer import Writer
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal.journal import START, JournalPosition
from escapement.storage.lease import Lease
from escapement.storage.log.generation import Generation
from escapement.storage.log.log import Log

# Lanes wait for the database's disk at the same time. On few cores, more lanes gain nothing.
DEFAULT_LANES: Final = 4
# Limit of the bytes that wait for commit in all lanes: about a second of work for a fast disk.
DEFAULT_WAITING_BYTES: Final = 64 << 20
# Bounds of the acknowledgements that wait for commit, and of the items that they are in.
DEFAULT_WAITING_ACKS: Final = 1_000_000
DEFAULT_ACK_ITEMS: Final = 65_536

T = TypeVar("T")


class CommitPipeline:
    """The commit pipeline. Open the topics, start ``run`` in a nursery, then submit items.

    Call all methods in the event loop's thread.
    """

    def __init__(
        self,
        engine: Engine,
        log: Log,
        lease: Lease,
        clock: Clock,
        run: Run,
        on_commit: Callable[[Group], None],
        *,
        journal_ends: Mapping[int, JournalPosition],
        shared: SharedWriter | None = None,
        on_state: Callable[[State], None] = lambda state: None,
        on_took: Callable[[float], None] = lambda took_s: None,
        max_lanes: int = DEFAULT_LANES,
        max_waiting_bytes: int = DEFAULT_WAITING_BYTES,
        max_waiting_acks: int = DEFAULT_WAITING_ACKS,
        max_ack_items: int = DEFAULT_ACK_ITEMS,
        max_commits_per_second: float | None = None,
    ) -> None:
        """Create a pipeline that has not started.

        Args:
          run: makes the blocking calls to the database.
          on_commit: is called with each durable group.
          journal_ends: by lane, the position of the last entry in the journal.
          shared: writes groups of several pipelines in one transaction; None: each group has a
            transaction of its own.
          on_state: is called when :attr:`state` changes, but not when the pipeline ends.
          on_took: is called with the seconds that each durable group took.
          max_lanes: limit of lanes. The engine may have a lower limit.
          max_waiting_bytes: limit of the bytes that wait for commit. Beyond it, appends are refused
            with ``Busy``.
          max_waiting_acks: bound of acknowledgements that wait for commit.
          max_ack_items: bound of the items that they are in.
          max_commits_per_second: limit for all lanes together; None for no limit.
        """
        count = max(1, min(max_lanes, engine.max_lanes))
        interval_s = count / max_commits_per_second if max_commits_per_second else 0.0
        self._next_offsets: dict[int, int] = {}
        self._max_waiting_bytes = max_waiting_bytes
        self._max_waiting_acks, self._max_ack_items = max_waiting_acks, max_ack_items
        self._on_state = on_state
        self._state = State.DOWN
        self._waiting = Waiting()
        self._waiters = trio.lowlevel.ParkingLot()
        self._lanes = [
            Lane(
                number,
                journal_ends.get(number, START).seq,
                writer=Writer(engine, lease, number, journal_ends.get(number, START)),
                shared=shared,
                log=log,
                clock=clock,
                run=run,
                next_offsets=self._next_offsets,
                waiting=self._waiting,
                min_interval_s=interval_s,
                on_commit=on_commit,
                on_took=on_took,
                on_change=self._changed,
            )
            for number in range(count)
        ]

    # -- state -----------------------------------------------------------------

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    @property
    def state(self) -> State:
        """Whether the database accepts writes: the worst state of any lane."""
        return self._state

    @property
    def reported_state(self) -> State:
        """The state for operators: DOWN also if the last group of a lane that is up failed."""
        if self._state is State.UP and any(lane.failing for lane in self._lanes):
            return State.DOWN
        return self._state

    @property
    def waiting_bytes(self) -> int:
        """Memory of appends, restatements and inbox entries of acknowledgements that wait."""
        return self._waiting.body_bytes

    @property
    def waiting_acks(self) -> int:
        """Number of acknowledgements that are not durable yet. The broker limits them.

        An acknowledgement that names only offsets which wait already counts as one.
        """
        return self._waiting.ack_count

    def has_ack_room(self, but: Group | None = None) -> bool:
        """Return whether fewer acknowledgements wait for commit than their bounds.

        Args:
          but: a group that has just become durable. It counts as if it still waited.
        """
        count, items = self._waiting.ack_count, self._waiting.ack_items
        if but is not None:
            count, items = count + but.ack_count, items + len(but.acks)
        return count < self._max_waiting_acks and items < self._max_ack_items

    def check_acks(self, count: int) -> None:
        """Check that one more item, with ``count`` acknowledgements, may be submitted.

        A cancellation counts as an acknowledgement. Up to twice the bounds of :meth:`has_ack_room`
        may wait.

        Raises:
          StorageReadOnly: if the database is read-only.
          StorageUnavailable: if too many acknowledgements wait for commit.
        """
        if self._state is State.READ_ONLY:
            raise StorageReadOnly("the database is read-only; try again later")
        waiting = self._waiting
        if (
            waiting.ack_count + count > 2 * self._max_waiting_acks
            or waiting.ack_items >= 2 * self._max_ack_items
        ):
            raise StorageUnavailable(
                "too many acknowledgements wait for the database; try again later"
            )

    @property
    def has_room(self) -> bool:
        """Whether the bytes that wait for commit are below their limit, so appends are accepted."""
        return self._waiting.body_bytes < self._max_waiting_bytes

    # -- topics ----------------------------------------------------------------

    def open_topic(self, topic_id: int, next_offset: int) -> None:
        """Accept appends to a topic from now on. The first message gets ``next_offset``."""
        assert topic_id not in self._next_offsets, f"topic {topic_id} is open"
        self._next_offsets[topic_id] = next_offset

    def shut_topic(self, topic_id: int, next_offset: int) -> None:
        """Accept no appends to a topic until it is opened again, because it becomes passive.

        No item of the topic may wait for commit. ``next_offset`` must be the topic's next offset.
        """
        there = self._next_offsets.pop(topic_id)
        assert there == next_offset, "the topic has grown"

    def topics(self) -> set[int]:
        """Return the ids of the topics with items that wait for commit."""
        return {id for lane in self._lanes for id in lane.topics()}

    def close_topic(self, topic_id: int) -> None:
        """Accept no more appends to a topic. Its queued appends fail with ``NotFound``.

        Call this before submitting the statement that deletes the topic. Then a group that is being
        written commits before the deletion, and no append can follow the deletion.
        """
        del self._next_offsets[topic_id]
        self._lane(topic_id).close_topic(topic_id)

    # -- submitting ------------------------------------------------------------

    def submit(self, item: Append | Restate | Acks | Attempts) -> None:
        """Queue an item for the next group of its topic's lane. O(1).

        Raises:
          Busy: if the item is an append and there is no room (see :meth:`room`).
          StorageUnavailable: if the item is an append or a restatement and the database does not
            answer.
          StorageReadOnly: if the database is read-only. Attempts are accepted even then.
        """
        if isinstance(item, Append):
            assert item.topic_id in self._next_offsets, f"topic {item.topic_id} is not open"
            if not self.has_room:
                raise Busy(
                    f"{self.waiting_bytes} bytes wait for commit, "
                    f"the limit is {self._max_waiting_bytes}; retry shortly"
                )
        self._lane(item.topic_id).submit(item)

    def doubt(self, error: StorageReadOnly) -> None:
        """Treat the database as read-only, because another part of the broker got this error.

        Each idle lane then connects again, which shows whether the database accepts writes.
        """
        for lane in self._lanes:
            lane.doubt(error)

    async def room(self) -> None:
        """Wait until the bytes that wait for commit are below their limit.

        An append that the caller submits before its next await is not refused as ``Busy``.
        """
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            await self._waiters.park()

    async def transact(
        self, statement: Callable[[Connection], T], *, topic_id: int = 0, forgets: str = ""
    ) -> T:
        """Run a function in the transaction of a group, and return its result after the commit.

        If the caller is cancelled, the function may run later, or may have run.

        Args:
          statement: the function, which executes SQL statements. It runs in a thread, may run more
            than once, and must only use the connection. If it raises, only its own changes are
            rolled back, and the exception is raised here.
          topic_id: run after the items of this topic that are queued now.
          forgets: name of an event group of the topic that the function deletes.
        """
        wait = CommitWait()
        item = Statement(topic_id, statement, wait.end, wait.end, forgets=forgets)
        self._lane(topic_id).submit(item)
        await wait.ended()
        if item.error is not None:
            raise item.error
        value: Any = item.value
        return value  # type: ignore[no-any-return]

    def writes_to(self, generation: Generation) -> bool:
        """Return whether any lane is writing a group to this generation of the log."""
        return any(lane.writes_to(generation) for lane in self._lanes)

    # -- running ---------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit groups until cancelled. Report "started" when each lane has tried to connect.

        Raises:
          LeaseLost: if another broker has taken the lease. Nothing was written after that.
          StorageError: if the database reports an error that waiting or repeating cannot solve.
        """
        try:
            async with trio.open_nursery() as nursery:
                for lane in self._lanes:
                    await nursery.start(lane.work)
                task_status.started()
        except BaseExceptionGroup as group:
            # The first lane that failed has the cause. Its failure cancelled the other lanes.
            errors = group.subgroup(Exception)
            if errors is None:
                raise
            raise _first(errors) from None
        finally:
            self._waiters.unpark_all()

    async def drain(self) -> None:
        """Wait until no item waits for commit. Use a timeout, because an outage delays it."""
        await trio.lowlevel.checkpoint()
        while not all(lane.idle for lane in self._lanes):
            await self._waiters.park()

    def _lane(self, topic_id: int) -> Lane:
        return self._lanes[topic_id % len(self._lanes)]

    def _changed(self) -> None:
        """Wake the tasks that wait for progress, and report a change of the pipeline's state.

        A lane calls this when it has made progress or its state has changed.
        """
        self._waiters.unpark_all()
        state = max((lane.state for lane in self._lanes), key=lambda state: state.value)
        if state is not self._state:
            self._state = state
            if state is not State.ENDED:
                self._on_state(state)


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    found: Exception | BaseExceptionGroup[Exception] = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
