"""One lane of the commit pipeline: a queue of items, and the task that commits them in groups.

An *item* (storage/commit/items.py) is something to make durable, such as published messages or
acknowledgements. A *group* is one transaction for many items. A lane writes one group at a time. It
decides which items form the next group, and how to handle a failure. It makes the blocking calls to
:class:`~escapement.storage.commit.writer.Writer` through ``run``. Submitting is synchronous, and so
is everything after a COMMIT: ``on_commit`` is called once for each group, in order.

How a lane handles failures of the database:

- **Connection lost before COMMIT was sent.** Nothing of the group is stored. The lane reconnects
  once immediately, because a connection that was cut while idle is not an outage. If that works, it
  writes the same group again. If not, the lane is *down*: the group's appends and statements fail
  with a retryable error, ``next_offset`` moves back, and its acks, attempts and inbox entries stay
  queued. The lane refuses new appends until a *probe*, an attempt to connect, succeeds.
- **Connection lost while waiting for the reply to COMMIT.** The group is neither confirmed nor
  failed. The lane assigns none of its offsets again before it has read back whether the group is
  stored. If it is not, the lane writes it again: no publisher has seen a failure. If that COMMIT
  gets no reply either, the lane is down until the group is stored.
- **Database is read-only.** The lane handles this as a lost connection, but refuses acks as well. A
  lane that is not writing learns of it from another part of the broker (``doubt``).
- **Deadlock or lock timeout.** The lane writes the same group again.
- **The lane can connect, but its groups fail again and again**, for example because a table of the
  log is full. The lane pauses between two groups, and counts as *failing*.
- **The database does not reply.** The lane waits until the statement times out. After a few seconds
  it counts as failing.
- **Any other error, and the loss of the lease.** The lane ends with that error.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from escapement.clock import Clock
from escapement.errors import (
    EscapementError,
    NotFound,
    OutcomeUnknown,
    ShuttingDown,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
)
from escapement.event_log import EventLog
from escapement.storage.blocking import Run
from escapement.storage.commit.group import Group, form_group
from escapement.storage.commit.items import Acks, Append, Item, Refusable, Restate, Statement
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.commit.writer import Writer
from escapement.storage.engine.base import TransactionAborted
from escapement.storage.log.generation import Generation
from escapement.storage.log.log import Log

_log = EventLog(__name__)

# Target size of a group. In larger groups the fixed cost of a COMMIT is negligible, but the items
# of the next group wait longer. If much more waits, a group takes half of it, up to a limit: then
# the lane is behind, and larger groups let it catch up.
GROUP_BYTES: Final = 1 << 20
MOST_GROUP_BYTES: Final = 4 << 20
# Limit of statements in one group. Each needs several round trips, which delay the group's appends.
GROUP_STATEMENTS: Final = 64
# Pauses between attempts to reach the database: the first, and the longest. They double. The first
# is short, because most outages are a restart of the server.
FIRST_PROBE_S: Final = 0.05
LAST_PROBE_S: Final = 2.0
# How long a lane that can connect counts as failing after a failed group, unless it commits a group
# before. A lane that has nothing to write does not notice that the database accepts groups again.
_FAILING_S: Final = 10.0
# A lane that has been writing a group for longer than this counts as failing: the database hangs.
_HANGING_S: Final = 3.0


class State(enum.Enum):
    """Whether the database accepts the writes of a lane. A greater value is a worse state."""

    UP = 0
    DOWN = 1  # the database cannot be reached
    READ_ONLY = 2
    ENDED = 3  # the lane never writes again


@dataclass(slots=True)
class Waiting:
    """The items that all lanes together have queued or are writing."""

    # Memory of the appends, the restatements and the inbox entries of acknowledgements.
    body_bytes: int = 0
    ack_count: int = 0  # acknowledgements
    ack_items: int = 0  # items with acknowledgements


class Lane:
    """One lane of the commit pipeline. Call all methods in the event loop's thread."""

    def __init__(
        self,
        number: int,
        last_seq: int,
        *,
        writer: Writer,
        shared: SharedWriter | None,
        log: Log,
        clock: Clock,
        run: Run,
        next_offsets: dict[int, int],
        waiting: Waiting,
        min_interval_s: float,
        on_commit: Callable[[Group], None],
        on_took: Callable[[float], None],
        on_change: Callable[[], None],
    ) -> None:
        self.number = number
        self.state = State.DOWN
        self._last_seq = last_seq
        self._writer = writer
        self._shared = shared
        self._log = log
        self._clock = clock
        self._run = run
        self._next_offsets = next_offsets
        self._waiting = waiting
        self._min_interval_s = min_interval_s
        self._on_commit = on_commit
        self._on_took = on_took
        self._on_change = on_change
        self._queue: deque[Item] = deque()
        self._group: Group | None = None
        self._unknown = False  # whether a COMMIT of the group got no reply and may have succeeded
        self._wake = trio.Event()
        self._last_start_s = float("-inf")
        self._failed_s = float("-inf")  # when the last group failed, if it did
        self._pause_s = 0.0  # before the next attempt to connect, after a group was given back
        self._why: StorageUnavailable = StorageUnavailable("the lane has not started")
        self._has_told_state = False

    @property
    def idle(self) -> bool:
        return not self._queue and self._group is None

    @property
    def failing(self) -> bool:
        """Whether the lane has been writing a group for long, or its last one failed recently.

        False if a connection failed since the group did: the lane's state shows this outage.
        """
        now_s = trio.current_time()
        hangs = self._group is not None and now_s > self._last_start_s + _HANGING_S
        return hangs or now_s < self._failed_s + _FAILING_S

    def topics(self) -> set[int]:
        """Return the ids of the topics with items that are queued or being written."""
        found = {item.topic_id for item in self._queue}
        if (group := self._group) is not None:
            found.update(item.topic_id for item in group.items)
        return found

    def writes_to(self, generation: Generation) -> bool:
        """Return whether the lane is writing a group to this generation of the log."""
        return self._group is not None and self._group.generation.id == generation.id

    def submit(self, item: Item) -> None:
        """Queue an item for the next group.

        Attempts are always accepted, because they record events that have happened.

        Raises:
          StorageUnavailable: if the lane is down or has ended, and the item is an append, a
            restatement or a statement.
          StorageReadOnly: if the database is read-only and the item is not attempts.
        """
        if self.state is not State.UP and (
            isinstance(item, Refusable)
            or (isinstance(item, Acks) and self.state is State.READ_ONLY)
        ):
            raise self._refusal()
        self._queue.append(item)
        if isinstance(item, Append | Restate):
            self._waiting.body_bytes += item.waiting_bytes
        elif isinstance(item, Acks):
            self._waiting.ack_count += item.count
            self._waiting.ack_items += 1
            self._waiting.body_bytes += item.entry_bytes
        self._wake.set()

    def doubt(self, error: StorageReadOnly) -> None:
        """Treat the database as read-only until an attempt to connect succeeds.

        Has no effect while a group is being written, because this write shows the state itself.
        """
        if self.state is State.UP and self._group is None:
            self._go_down(error)
            self._wake.set()

    def close_topic(self, topic_id: int) -> None:
        """Fail the queued appends and restatements of a topic that is about to be deleted."""
        logged = [item for item in self._queue if isinstance(item, Append | Restate)]
        gone = [item for item in logged if item.topic_id == topic_id]
        if gone:
            self._queue = deque(item for item in self._queue if item not in gone)
            self._fail(gone, NotFound("the topic was deleted"))

    async def work(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit groups until cancelled. Report "started" after the first attempt to connect."""
        error: EscapementError = ShuttingDown("the broker is stopping")
        try:
            await self._try_connect()
            task_status.started()
            while True:
                await self._until_up()
                await self._until_work()
                await self._pace()
                if self._queue and self.state is State.UP:
                    await self._commit(self._form())
        except EscapementError as raised:
            error = raised
            raise
        except Exception as raised:
            error = StorageError(f"the commit pipeline failed: {raised!r}")
            raise
        finally:
            self._abandon(error)
            self._writer.disconnect()

    # -- one group -------------------------------------------------------------

    async def _until_work(self) -> None:
        while not self._queue and self.state is State.UP:
            self._wake = trio.Event()
            await self._wake.wait()

    async def _pace(self) -> None:
        wait_s = self._last_start_s + self._min_interval_s - trio.current_time()
        if wait_s > 0:
            await trio.sleep(wait_s)
        self._last_start_s = trio.current_time()

    def _form(self) -> Group:
        items: list[Item] = []
        size = statements = 0
        most = min(max(GROUP_BYTES, self._waiting.body_bytes // 2), MOST_GROUP_BYTES)
        while self._queue and size < most and statements < GROUP_STATEMENTS:
            item = self._queue.popleft()
            items.append(item)
            size += item.size_bytes
            statements += isinstance(item, Statement)
        self._group = form_group(
            items,
            self.number,
            self._last_seq + 1,
            self._clock.now_ms(),
            self._log.current,
            self._next_offsets,
        )
        return self._group

    async def _commit(self, group: Group) -> None:
        """Write a group, and repeat that until it is durable or an outage makes it fail."""
        tries = lost_replies = 0
        pause_s = FIRST_PROBE_S
        while True:
            try:
                await self._write(group, first=not tries)
            except OutcomeUnknown as error:
                _log.warning(
                    "commit.outcome_unknown",
                    "lane %d: %s; checking what is stored",
                    self.number,
                    error,
                    lane=self.number,
                )
                self._unknown = True
                lost_replies += 1
                if lost_replies > 1:
                    self._go_down(error)
            except TransactionAborted as error:
                _log.warning(
                    "commit.retried",
                    "lane %d: %s; retrying",
                    self.number,
                    error,
                    lane=self.number,
                )
                if tries:
                    self._failed_s = trio.current_time()
            except StorageUnavailable as error:
                if self._unknown:
                    # This group stays neither confirmed nor failed. Fail the queued items now.
                    self._go_down(error)
                elif tries or isinstance(error, StorageReadOnly):
                    self._give_back(group, error)
                    return
            else:
                self._finish(group)
                return
            # The first retry is immediate, because usually only the connection broke.
            if tries:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PROBE_S)
            tries += 1

    async def _write(self, group: Group, *, first: bool) -> None:
        """Write a group once. Skip that if an earlier COMMIT without a reply has stored it."""
        # After a group that was given back, the others would fail with this one again.
        can_share = first and not self._pause_s and group.can_share
        shared = self._shared if can_share else None
        if shared is not None and await shared.write(self._writer, group):
            return
        if not self._writer.connected:
            await self._run(self._writer.connect)
        if self._unknown and await self._run(self._writer.is_durable, group):
            return
        self._unknown = False
        await self._run(self._writer.write, group)

    def _finish(self, group: Group) -> None:
        """Report a durable group to the submitters of its items, in one synchronous step."""
        self._group = None
        self._unknown = False
        self._pause_s, self._failed_s = 0.0, float("-inf")
        self._last_seq = group.seq
        self._waiting.body_bytes -= group.body_bytes
        self._waiting.ack_count -= group.ack_count
        self._waiting.ack_items -= len(group.acks)
        self._log.wrote(group.log_bytes)
        self._set_state(State.UP)
        self._on_took(trio.current_time() - self._last_start_s)
        try:
            self._on_commit(group)
        finally:  # even if the lane ends now, because no other code tells the submitters
            for statement in group.statements:
                statement.settle()
        self._on_change()

    def _give_back(self, group: Group, error: StorageUnavailable) -> None:
        """Give up a group that is not stored. Queue its acks and attempts again, fail the rest."""
        self._group = None
        group.undo()
        for topic in group.topics:
            if topic.topic_id in self._next_offsets:
                self._next_offsets[topic.topic_id] = topic.base_offset
        # Attempts go first: cancellations are among the acks, and must not become durable before
        # the attempts that came before them.
        self._queue.extendleft(reversed([*group.attempts, *group.acks]))
        self._failed_s = trio.current_time()
        self._pause_s = min(max(2 * self._pause_s, FIRST_PROBE_S), LAST_PROBE_S)
        self._go_down(error)
        self._fail(group.refusable, error)

    # -- up and down -----------------------------------------------------------

    async def _try_connect(self) -> bool:
        try:
            await self._run(self._writer.connect)
        except TransactionAborted as error:
            self._stay_down(StorageUnavailable(f"the lease row stays locked: {error}"))
            return False
        except StorageUnavailable as error:
            self._stay_down(error)
            return False
        self._set_state(State.UP)
        return True

    def _stay_down(self, error: StorageUnavailable) -> None:
        """Note that the lane cannot connect. Once it can, the outage is over."""
        self._failed_s = float("-inf")
        self._go_down(error)

    async def _until_up(self) -> None:
        if self.state is not State.UP and self._writer.connected:
            # Connecting again shows whether the database accepts writes.
            await self._run(self._writer.disconnect)
        if self.state is not State.UP:
            # Connecting may succeed although groups fail again and again.
            await trio.sleep(self._pause_s)
        pause_s = FIRST_PROBE_S
        while not (self.state is State.UP or await self._try_connect()):
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PROBE_S)

    def _go_down(self, error: StorageUnavailable) -> None:
        """Note that the database accepts no writes, and fail the queued appends and statements.

        New ones are refused until the lane is up.
        """
        self._why = error
        refused = [item for item in self._queue if isinstance(item, Refusable)]
        self._queue = deque(item for item in self._queue if not isinstance(item, Refusable))
        read_only = isinstance(error, StorageReadOnly)
        self._set_state(State.READ_ONLY if read_only else State.DOWN)
        self._fail(refused, self._refusal())

    def _set_state(self, state: State) -> None:
        if state is not self.state:
            level = logging.INFO if state is State.UP else logging.WARNING
            if state is State.UP and not self._has_told_state:
                level = logging.DEBUG  # a usual start
            self._has_told_state = True
            why = "" if state is State.UP else f": {self._why}"
            name = state.name.lower()
            _log.log(
                level,
                "commit.lane_state",
                "lane %d is %s%s",
                self.number,
                name,
                why,
                lane=self.number,
                state=name,
            )
            self.state = state
            self._on_change()

    def _refusal(self) -> StorageUnavailable:
        kind = StorageReadOnly if self.state is State.READ_ONLY else StorageUnavailable
        return kind(f"the database accepts no writes now: {self._why}")

    def _fail(self, items: Sequence[Refusable], error: EscapementError) -> None:
        self._waiting.body_bytes -= sum(item.waiting_bytes for item in items)
        for item in items:
            item.fail(error)
        self._on_change()

    def _abandon(self, error: EscapementError) -> None:
        """End the lane. Fail all appends and statements that are queued or being written."""
        self.state, self._why = State.ENDED, StorageUnavailable(f"commits have ended: {error}")
        if (group := self._group) is not None:
            self._group = None
            told = error
            if self._unknown:
                told = OutcomeUnknown("the broker stopped before it knew whether this is stored")
            self._fail(group.refusable, told)
        refused = [item for item in self._queue if isinstance(item, Refusable)]
        self._queue.clear()
        self._fail(refused, error)
