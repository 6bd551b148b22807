"""The commit pipeline: all that must be durable goes through here, in groups.

Publishes, acknowledgements, attempts and changes of the catalog wait together and
share transactions. The pipeline has a few *lanes* (storage/commit/lane.py), each a task with
a database connection. A topic belongs to one lane, ``topic_id % lanes``, so its groups
commit in order; lanes commit beside each other.

A message's way: ``submit(Append)`` → a group of its lane, where it gets its offset and
its ``due_ms`` → COMMIT → ``on_commit(group)``. Invariants:

- ``on_commit`` is called exactly once for each group that is durable, synchronously,
  groups of a lane in order; never for one that is not (invariant 1).
- An append ends in exactly one of ``on_commit`` or its ``fail``.
- Offsets of a topic are given out without gaps, and again only if it is certain that
  they were not made durable.
- Nothing is written once the lease's epoch is no longer ours (invariant 8).

The number of lanes may change from one start to the next: the journal is read by epoch
first (storage/journal/journal.py), and each start has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import trio

from escapement.clock import Clock
from escapement.errors import Busy, EscapementError, StorageReadOnly
from escapement.storage.blocking import Run
from escapement.storage.commit.group import Group
from escapement.storage.commit.items import Acks, Append, Attempts, Restate, Statement
from escapement.storage.commit.lane import Lane, State
from escapement.storage.commit.writer import Writer
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.journal.journal import START, JournalPosition
from escapement.storage.lease import Lease, Recorded
from escapement.storage.log.generation import Generation
from escapement.storage.log.log import Log

# Lanes overlap their waits for the disk; on few cores more of them gain nothing.
DEFAULT_LANES: Final = 4
# Bodies waiting for commit, over all lanes: a second or so of a fast disk's work.
DEFAULT_WAITING_BYTES: Final = 64 << 20

T = TypeVar("T")


class CommitPipeline:
    """Open the topics, ``run`` it in a nursery, then submit. For the event loop's thread."""

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
        on_state: Callable[[State], None] = lambda state: None,
        recorded: Recorded | None = None,
        max_lanes: int = DEFAULT_LANES,
        max_waiting_bytes: int = DEFAULT_WAITING_BYTES,
        max_commits_per_second: float | None = None,
    ) -> None:
        """``journal_ends`` is ``State.journal_ends`` of ``load_state``.

        ``on_state`` is told what the database does, not that the pipeline has ended.
        ``max_commits_per_second`` counts the groups of all lanes; None is as many as
        the database takes.
        """
        count = max(1, min(max_lanes, engine.max_lanes))
        recorded = recorded or Recorded(engine, lease)
        interval_s = count / max_commits_per_second if max_commits_per_second else 0.0
        self._next_offsets: dict[int, int] = {}
        self._max_waiting_bytes = max_waiting_bytes
        self._on_state = on_state
        self._state = State.DOWN
        self._waiters = trio.lowlevel.ParkingLot()
        self._lanes = [
            Lane(
                number,
                journal_ends.get(number, START).seq,
                writer=Writer(engine, lease, recorded),
                log=log,
                clock=clock,
                run=run,
                next_offsets=self._next_offsets,
                min_interval_s=interval_s,
                on_commit=on_commit,
                on_change=self._changed,
            )
            for number in range(count)
        ]

    # -- what there is ---------------------------------------------------------

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    @property
    def state(self) -> State:
        """The worst state of any lane."""
        return self._state

    @property
    def waiting_bytes(self) -> int:
        """Size of appends and letters that are neither durable nor failed."""
        return sum(lane.body_bytes for lane in self._lanes)

    @property
    def waiting_acks(self) -> int:
        """Acknowledged offsets that are not durable yet. The broker stops dispatch on it."""
        return sum(lane.ack_count for lane in self._lanes)

    @property
    def has_room(self) -> bool:
        """Whether an append would be taken."""
        return self.waiting_bytes < self._max_waiting_bytes

    # -- topics ----------------------------------------------------------------

    def open_topic(self, topic_id: int, next_offset: int) -> None:
        """From now on the topic may be appended to, beginning at ``next_offset``."""
        assert topic_id not in self._next_offsets, f"topic {topic_id} is open"
        self._next_offsets[topic_id] = next_offset

    def shut_topic(self, topic_id: int, next_offset: int) -> None:
        """Nothing goes into the topic until it is opened again, and nothing waits of it."""
        assert self._next_offsets.pop(topic_id) == next_offset

    def topics(self) -> set[int]:
        """The ids of topics of which something waits, or is being written."""
        return {id for lane in self._lanes for id in lane.topics()}

    def close_topic(self, topic_id: int) -> None:
        """Nothing more goes into the topic; what still waits of it fails with ``NotFound``.

        To be called before the statement that deletes it is handed in: then what is
        being written goes before the delete, and nothing can follow it.
        """
        del self._next_offsets[topic_id]
        self._lane(topic_id).close_topic(topic_id)

    # -- handing in ------------------------------------------------------------

    def submit(self, item: Append | Restate | Acks | Attempts) -> None:
        """Queue ``item`` for its topic's next group. O(1).

        Raises:
          Busy: an append while there is no room (see :meth:`room`).
          StorageUnavailable: an append while the database does not answer.
          StorageReadOnly: an append or acks while it takes no writes.
        """
        if isinstance(item, Append):
            assert item.topic_id in self._next_offsets, f"topic {item.topic_id} is not open"
            if not self.has_room:
                raise Busy(
                    f"{self.waiting_bytes} bytes wait for commit, "
                    f"the limit is {self._max_waiting_bytes}: try again shortly"
                )
        self._lane(item.topic_id).submit(item)

    def doubt(self, error: StorageReadOnly) -> None:
        """Somebody found the database read-only: take it for that until a lane's probe succeeds."""
        for lane in self._lanes:
            lane.doubt(error)

    async def room(self) -> None:
        """Wait until there is room; what is submitted before the next await is taken."""
        await trio.lowlevel.checkpoint()
        while not self.has_room:
            await self._waiters.park()

    async def transact(
        self, statement: Callable[[Connection], T], *, topic_id: int = 0, forgets: str = ""
    ) -> T:
        """Run ``statement`` in a group's transaction; its result, once that is durable.

        It goes behind what ``topic_id`` has waiting. It runs in a thread, may run more
        than once, and must do nothing but use the connection. What it raises takes back
        its own changes only, and is raised here. If the caller is cancelled, it may
        have been done or not. With it the topic forgets the group ``forgets``.
        """
        done = trio.Event()
        refusal: list[EscapementError] = []

        def fail(error: EscapementError) -> None:
            refusal.append(error)
            done.set()

        item = Statement(topic_id, statement, done.set, fail, forgets=forgets)
        self._lane(topic_id).submit(item)
        await done.wait()
        if refusal:
            raise refusal[0]
        if item.error is not None:
            raise item.error
        value: Any = item.value
        return value  # type: ignore[no-any-return]

    def writes_to(self, generation: Generation) -> bool:
        """Whether a group is under way that goes into this generation of the log."""
        return any(lane.writes_to(generation) for lane in self._lanes)

    # -- running ---------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. "Started" when every lane has tried to connect.

        Raises:
          LeaseLost: another broker has taken over; nothing more was or will be written.
          StorageError: anything that is neither an outage nor a conflict.
        """
        try:
            async with trio.open_nursery() as nursery:
                for lane in self._lanes:
                    await nursery.start(lane.work)
                task_status.started()
        except BaseExceptionGroup as group:
            # The first lane to fail says why; what the others raised came of it.
            errors = group.subgroup(Exception)
            if errors is None:
                raise
            raise _first(errors) from None
        finally:
            self._waiters.unpark_all()

    async def drain(self) -> None:
        """Wait until nothing waits. In an outage that is when it has passed: use a timeout."""
        await trio.lowlevel.checkpoint()
        while not all(lane.idle for lane in self._lanes):
            await self._waiters.park()

    def _lane(self, topic_id: int) -> Lane:
        return self._lanes[topic_id % len(self._lanes)]

    def _changed(self) -> None:
        """A lane made progress, or its state changed."""
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
