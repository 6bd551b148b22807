"""Writes acknowledgements and retries into the rows of message tables, in group commits.

Subscriptions submit them without waiting. One task takes all that wait, up to a bound, and writes
them in one transaction. After an error everything is kept, and tried again until it is written.

A row that another session has locked waits for a back-off. Then all such rows of the table are
tried together, in a transaction of their own. So they hold up no other row.

An item that the database refuses is a *suspect*. It is written alone, and divided into halves until
each refused row is alone. Refused rows, and items that met the lock of a whole table, wait for
another back-off. The other items of the table are meanwhile written apart from those of other
tables. So they hold up no other table, and refused rows hold up no other row of their table.

While an acknowledgement waits, its row stays in memory, so that no poll takes it for a new message.
While a retry waits, its row is not claimed, because a claim would not find the version that the
broker knows. If a row gets another retry meanwhile, such as a nack after an extended deadline, the
newer one replaces the one that waits. So the rows that wait are bounded by those in flight, however
long an outage is. A retry whose transaction has begun is written first, because the newer one must
know its version.

Invariant: no row is in two retries that wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

import numpy as np
import trio

from escapement.broker.tables.claim import NANOSECONDS
from escapement.broker.tables.row_items import (
    RowAck,
    RowItem,
    RowRetry,
    halves,
    joined,
    write_all,
    write_joined,
)
from escapement.broker.tables.served_table import ServedTable
from escapement.clock import Clock
from escapement.errors import StorageError, StorageReadOnly, StorageUnavailable
from escapement.message import Bools, Int64s
from escapement.storage.blocking import Run
from escapement.storage.commit.items import Acks, Attempts
from escapement.storage.engine.base import Connection, TransactionAborted
from escapement.tables.row_ids import RowId

# The most rows of one transaction, unless one item has more.
_MOST_ROWS: Final = 8_192
# The pause before rows that another session has locked are tried again, the first time and after
# many times.
_LOCKED_S: Final = 0.05
_LONGEST_LOCKED_S: Final = 2.0
# The shortest pause after an error, and the longest after several.
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 2.0
# After a lock of a whole table, the pause before the next items of this table is at least this many
# times as long as the failed transaction took. A statement may wait for the lock for a second.
_SLOW_FAILURE: Final = 4


@dataclass(slots=True, eq=False)
class _Line:
    """Items that wait for the same time, which is on the clock of the event loop."""

    items: deque[RowItem] = field(default_factory=deque)
    due_s: float = 0.0
    pause_s: float = 0.0

    @property
    def next_s(self) -> float:
        """When to write some of the items."""
        return self.due_s if self.items else inf


@dataclass(slots=True, eq=False)
class _Apart:
    """The items of a table of which some have failed.

    ``suspects`` have failed together with others, or are halves of an item that has failed alone.
    ``refused`` are single rows that have failed alone, and items that met the lock of the table.
    ``others`` are all further items, unless they are trusted. ``known_good`` is how many of the
    first of these were written before another one failed. They are written first, so there is
    progress.
    """

    suspects: _Line = field(default_factory=_Line)
    refused: _Line = field(default_factory=_Line)
    others: _Line = field(default_factory=_Line)
    known_good: int = 0
    is_trusted: bool = False
    last: _Line | None = None  # the line of the last transaction

    @property
    def lines(self) -> list[_Line]:
        return [self.others, self.suspects, self.refused]

    @property
    def next_s(self) -> float:
        """When to write some of the items."""
        return min(line.next_s for line in self.lines)

    def next(self, now_s: float) -> _Line:
        """Return the line from which items are to be written now. Lines that are due take turns."""
        lines = self.lines
        at = 0 if self.last is None else lines.index(self.last) + 1
        self.last = next(line for line in lines[at:] + lines[:at] if line.next_s <= now_s)
        return self.last

    def failed(self, item: RowItem, took_s: float, now_s: float, *, is_locked: bool) -> None:
        """Set the times of the next attempts after an item has failed, before it is in a line."""
        slow_s = _SLOW_FAILURE * took_s if is_locked else 0.0
        refuses = is_locked or (item.is_suspect and len(item.ids) == 1)
        if refuses and (self.last is self.refused or not self.refused.items):
            self.refused.pause_s = _longer_s(self.refused.pause_s)
            self.refused.due_s = now_s + max(self.refused.pause_s, slow_s)
        # All suspects may fail if the table is locked. Otherwise the next one is written soon.
        self.suspects.due_s = now_s + max(self.refused.pause_s if is_locked else 0.0, slow_s)
        if not item.is_suspect:
            self.is_trusted = False
            self.others.pause_s = _longer_s(self.others.pause_s) if is_locked else 0.0
            self.others.due_s = now_s + max(self.others.pause_s, slow_s)


def _longer_s(pause_s: float) -> float:
    return min(max(2 * pause_s, _FIRST_RETRY_S), _LAST_RETRY_S)


class RowWriter:
    """The task that writes into the rows of the tables of one database.

    Args:
      write: calls a function with an open connection, in a transaction and in a thread.
      on_trouble: called with each error, and the table whose row caused it, if that is known.
      on_written: called after each transaction with the tables that have rows which cannot be
        written.
      on_change: called with a table whose subscription may have work.
      last_poll: returns the number of the last poll that has begun.
      most_acks: refuse acknowledgements while this many wait.
    """

    def __init__(
        self,
        clock: Clock,
        write: Callable[[Callable[[Connection], None]], None],
        run: Run,
        on_trouble: Callable[[StorageError, ServedTable | None], None],
        on_written: Callable[[Collection[ServedTable]], None],
        on_change: Callable[[ServedTable], None],
        last_poll: Callable[[], int],
        most_acks: int,
    ) -> None:
        self._clock = clock
        self._write = write
        self._run = run
        self._on_trouble = on_trouble
        self._on_written = on_written
        self._on_change = on_change
        self._last_poll = last_poll
        self._most_acks = most_acks
        self._items: deque[RowItem] = deque()
        self._apart: dict[ServedTable, _Apart] = {}
        # Whether the last transaction was of a table apart. Those of locked rows do not count.
        self._was_apart = False
        # The items of locked rows, by their table and the pause before they are tried again.
        self._locked: dict[tuple[ServedTable, float], _Line] = {}
        self._locked_s = 0.0  # this pause of the rows of the current transaction; 0 for others
        # Callers that wait until acknowledgements are written, and the errors that they get.
        self._callers: dict[trio.Event, StorageError | None] = {}
        self._waiting = 0  # rows of all items, including those being written
        self._added = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """The number of rows that wait to be written, or are being written."""
        return self._waiting

    # -- submitting ----------------------------------------------------------------

    def check_acks(self, problem: StorageError | None) -> None:
        """Raise if no acknowledgement can be accepted now.

        Args:
          problem: why the database cannot be used; None if it can.

        Raises:
          StorageReadOnly: if the database accepts no writes.
          StorageUnavailable: if too many rows wait to be written.
        """
        if isinstance(problem, StorageReadOnly):
            raise problem
        if self._waiting >= self._most_acks:
            raise StorageUnavailable(
                f"{self._waiting:,} acknowledgements wait for the database of the table"
            )

    def submit(self, table: ServedTable, item: Acks | Attempts) -> None:
        """Write acknowledgements or attempts of a subscription."""
        here = table.cached.contains(item.offsets)
        offsets = item.offsets[here]
        ids = table.cached.ids(offsets)
        if isinstance(item, Acks):
            # A client that connects again may acknowledge rows that this broker never had.
            table.subscription.acked.committed(item.offsets[~here])
            self._add(RowAck(table, ids, item.done, self._now_ns, offsets))
        elif ids:
            if table.cached.are_written(offsets).any():
                self._replace(table, offsets)
            table.cached.set_writing(offsets, True)
            times_ns = item.next_ms[here] * NANOSECONDS
            self._add(RowRetry(table, ids, offsets, item.attempts[here], times_ns))

    def _replace(self, table: ServedTable, offsets: Int64s) -> None:
        """Leave rows out of the retries that wait, because they get newer ones."""
        for item in self._waiting_items:
            if isinstance(item, RowRetry) and item.table is table:
                self._keep(item, ~np.isin(item.offsets, offsets))
        self._items = _without_empty(self._items)
        for line in self._lines:
            line.items = _without_empty(line.items)

    def acknowledge(
        self, table: ServedTable, ids: list[RowId], done: Callable[[int], None]
    ) -> None:
        """Acknowledge rows that are not in memory; ``done`` gets the number that took effect."""
        self._add(RowAck(table, ids, done, self._now_ns))

    @property
    def _now_ns(self) -> int:
        return self._clock.now_ms() * NANOSECONDS

    def _add(self, item: RowItem) -> None:
        self._queue_of(item).append(item)
        self._waiting += len(item.ids)
        if self._idle.is_set():
            self._idle = trio.Event()
        self._added.set()

    def _queue_of(self, item: RowItem) -> deque[RowItem]:
        apart = self._apart.get(item.table)
        if apart is None or apart.is_trusted:
            return self._items
        return apart.others.items

    async def written(self, ended: trio.Event) -> None:
        """Wait until ``ended`` is set, because acknowledgements of the caller are written.

        Raises:
          StorageReadOnly: if the database accepts no writes. The acknowledgements still wait.
        """
        self._callers[ended] = None
        try:
            await ended.wait()
        finally:
            error = self._callers.pop(ended)
        if error is not None:
            raise error

    async def drained(self) -> None:
        """Wait until everything is written."""
        await self._idle.wait()

    # -- the task ------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled."""
        pause_s = 0.0
        while True:
            items, tried = self._next(), list[RowItem]()
            if not items:
                await self._wait()
                continue
            began_s = trio.current_time()
            write = write_joined if self._locked_s else write_all
            try:
                await self._run(self._write, partial(write, items, tried))
            except StorageError as error:
                if isinstance(error, StorageUnavailable) or not tried:
                    self._return(items)
                    self._on_trouble(error, None)
                    if isinstance(error, StorageReadOnly):
                        self._refuse(error)
                    pause_s = _longer_s(pause_s)
                    await trio.sleep(pause_s)
                    continue
                if self._locked_s:  # write them one by one to find the one that fails
                    for item in self._without_replaced(items):
                        self._queue_of(item).append(item)
                else:
                    self._put_apart(items, tried, error, trio.current_time() - began_s)
                    self._on_trouble(error, tried[-1].table)
            else:
                self._note_success(items)
                left = [one for item in items if (one := self._finish(item)) is not None]
                pause_s = min(max(2 * self._locked_s, _LOCKED_S), _LONGEST_LOCKED_S)
                self._put_locked(left, pause_s)
                for item in self._waiting_items:
                    if isinstance(item, RowRetry):  # maybe a newer one of the same rows
                        item.table.cached.set_writing(item.offsets, True)
            pause_s = 0.0
            await trio.lowlevel.checkpoint()

    @property
    def _lines(self) -> list[_Line]:
        """The lines of all tables: those of locked rows, and those of tables apart."""
        apart = [line for each in self._apart.values() for line in each.lines]
        return [*self._locked.values(), *apart]

    @property
    def _waiting_items(self) -> list[RowItem]:
        return [*self._items, *(one for line in self._lines for one in line.items)]

    def _next(self) -> list[RowItem]:
        """Return the items of the next transaction.

        Locked rows take turns with all others, and so do tables apart.
        """
        now_s = trio.current_time()
        apart = [one for one in self._apart.values() if one.next_s <= now_s]
        locked = [key for key, line in self._locked.items() if line.next_s <= now_s]
        if locked and not (self._locked_s and (self._items or apart)):
            return self._next_locked(min(locked, key=lambda key: self._locked[key].due_s))
        self._locked_s = 0.0
        self._was_apart = bool(apart) and not (self._was_apart and self._items)
        if not self._was_apart:
            return self._taken(self._items, len(self._items))
        table = min(apart, key=lambda one: one.next_s)
        line = table.next(now_s)
        known_good = table.known_good or len(line.items)
        return self._taken(line.items, known_good if line is table.others else 1)

    def _next_locked(self, key: tuple[ServedTable, float]) -> list[RowItem]:
        """Return the items of locked rows that wait equally long, with all retries in one item."""
        line = self._locked[key]
        items = self._taken(line.items, len(line.items))
        if not line.items:
            del self._locked[key]
        self._locked_s = key[1]
        acks: list[RowItem] = [item for item in items if isinstance(item, RowAck)]
        retries = [item for item in items if isinstance(item, RowRetry)]
        return [*acks, self._prepared(joined(retries))] if retries else acks

    def _taken(self, queue: deque[RowItem], most: int) -> list[RowItem]:
        """Take the first items from a queue, at most ``most``."""
        items: list[RowItem] = []
        count = 0
        while queue and len(items) < most:
            if items and count + len(queue[0].ids) > _MOST_ROWS:
                break
            items.append(self._prepared(queue.popleft()))
            count += len(items[-1].ids)
        return items

    async def _wait(self) -> None:
        """Wait until there is something to write."""
        self._added = trio.Event()
        if not self._waiting_items:
            self._idle.set()
        with trio.move_on_at(min((line.next_s for line in self._lines), default=inf)):
            await self._added.wait()

    def _return(self, items: Sequence[RowItem]) -> None:
        """Put items where they were, because nothing could be written."""
        if self._locked_s:
            self._put_locked(items, self._locked_s)
            return
        apart = self._apart.get(items[0].table) if self._was_apart else None
        if apart is not None and apart.last is not None and apart.last is not apart.others:
            apart.last.items.extendleft(self._without_replaced(items))  # it is a single item
            return
        self._put_back(items)

    def _put_back(self, items: Sequence[RowItem]) -> None:
        """Write items before all others, because their transaction has not written them."""
        for item in reversed(self._without_replaced(items)):
            self._queue_of(item).appendleft(item)

    def _put_locked(self, items: Sequence[RowItem], pause_s: float) -> None:
        """Write items later, because another session has locked their rows."""
        for item in self._without_replaced(items):
            line = self._locked.setdefault((item.table, pause_s), _Line(pause_s=pause_s))
            if not line.items:
                line.due_s = trio.current_time() + pause_s
            line.items.append(item)

    def _refuse(self, error: StorageReadOnly) -> None:
        """Answer the callers that wait for acknowledgements with an error."""
        for ended in self._callers:
            self._callers[ended] = type(error)(
                f"{error}. The rows may still be acknowledged when the database accepts writes."
            )
            ended.set()

    def _note_success(self, items: Sequence[RowItem]) -> None:
        """Note that a transaction is committed."""
        table = items[0].table
        apart = self._apart.get(table)
        if self._was_apart and not self._locked_s and apart is not None:
            assert apart.last is not None
            apart.last.due_s = apart.last.pause_s = 0.0
            if apart.last is apart.others:
                apart.known_good = 0
                apart.is_trusted = not apart.others.items
            if not apart.suspects.items and not apart.refused.items:
                del self._apart[table]
                self._items.extendleft(reversed(apart.others.items))
        for item in items:
            item.is_suspect = False
        self._on_written(self._apart.keys())

    def _without_replaced(self, items: Sequence[RowItem]) -> list[RowItem]:
        """Leave rows out of retries if a newer one waits. Return the items that are left."""
        newer: dict[ServedTable, set[int]] = {}
        for item in self._waiting_items:
            if isinstance(item, RowRetry):
                newer.setdefault(item.table, set()).update(item.offsets.tolist())
        for item in items:
            if isinstance(item, RowRetry) and item.table in newer:
                of_table = newer[item.table]
                kept = [offset not in of_table for offset in item.offsets.tolist()]
                self._keep(item, np.array(kept, bool))
        return [item for item in items if item.ids or isinstance(item, RowAck)]

    def _put_apart(
        self, items: Sequence[RowItem], tried: Sequence[RowItem], error: StorageError, took_s: float
    ) -> None:
        """Write the item that has failed alone, and the others of its table apart.

        If it has failed alone, its halves are written one by one. So in the end only the rows that
        cannot be written wait. Halves are written before other suspects, because these may fail
        too. If a lock of the whole table was the reason, the item is not divided.

        Args:
          items: the items of the failed transaction.
          tried: the first of them, up to the one that has failed.
          took_s: how long the failed transaction took.
        """
        failed, table = tried[-1], tried[-1].table
        apart = self._apart.setdefault(table, _Apart())
        is_locked, was_suspect = isinstance(error, TransactionAborted), failed.is_suspect
        apart.failed(failed, took_s, trio.current_time(), is_locked=is_locked)
        divides = was_suspect and not is_locked and len(failed.ids) > 1
        parts = self._without_replaced(halves(failed) if divides else [failed])
        for part in parts:
            part.is_suspect = True
        if divides:
            apart.suspects.items.extendleft(reversed(parts))
        elif was_suspect or is_locked:
            apart.refused.items.extend(parts)
        else:
            apart.suspects.items.extend(parts)
        if was_suspect:
            return
        apart.others.items.extend(item for item in self._items if item.table is table)
        self._items = deque(item for item in self._items if item.table is not table)
        self._put_back([item for item in items if item is not failed])
        apart.known_good = sum(item.table is table for item in tried[:-1])

    def _prepared(self, item: RowItem) -> RowItem:
        """Leave rows out of a retry that were forgotten, and note the versions of the others."""
        if isinstance(item, RowRetry):
            cached = item.table.cached
            self._keep(item, cached.contains(item.offsets))
            item.known = cached.versions(item.offsets)
        return item

    def _keep(self, item: RowRetry, kept: Bools) -> None:
        """Leave rows out of a retry that are not ``kept``; bool[n]."""
        at = np.flatnonzero(kept)
        self._waiting -= len(item.ids) - len(at)
        item.ids = [item.ids[row] for row in at.tolist()]
        item.offsets = item.offsets[at]
        item.epochs, item.times_ns = item.epochs[at], item.times_ns[at]

    def _finish(self, item: RowItem) -> RowItem | None:
        """Note that an item is written. Return the part of it that is not; None for nothing."""
        before = len(item.ids)
        left = self._acknowledged(item) if isinstance(item, RowAck) else self._retried(item)
        self._waiting -= before - (0 if left is None else len(left.ids))
        self._on_change(item.table)
        return left

    def _acknowledged(self, item: RowAck) -> RowAck | None:
        item.acked += len(item.found)
        locked = [id for id in item.ids if id in item.locked]
        if item.offsets is not None:
            is_locked = np.array([id in item.locked for id in item.ids], bool)
            durable = item.offsets[~is_locked]
            item.table.subscription.acked.committed(durable)
            item.table.removed(durable)
            item.offsets = item.offsets[is_locked]
        item.ids = locked
        if locked:
            return item
        if item.done is not None:
            item.done(item.acked)
        return None

    def _retried(self, item: RowRetry) -> RowRetry | None:
        table, written = item.table, item.written
        cached = table.cached
        here = written[cached.contains(item.offsets[written])]
        cached.set_versions(
            item.offsets[here], item.epochs[here], item.times_ns[here], self._last_poll()
        )
        settled = np.ones(len(item.ids), bool)
        settled[item.locked] = False
        gone = settled.copy()
        gone[written] = False
        cached.set_writing(item.offsets[settled], False)
        # A poll finds rows again that are due after the next one, so they need no memory. But rows
        # with a further retry may be due sooner.
        later_ns = self._now_ns + int(table.pace.ahead_s * 1000) * NANOSECONDS
        later = np.zeros(len(item.ids), bool)
        later[written] = item.times_ns[written] > later_ns
        self._forget(table, item.offsets[gone | (later & ~self._are_retried(table, item.offsets))])
        if not len(item.locked):
            return None
        at = item.locked
        ids = [item.ids[row] for row in at.tolist()]
        return RowRetry(table, ids, item.offsets[at], item.epochs[at], item.times_ns[at])

    def _are_retried(self, table: ServedTable, offsets: Int64s) -> Bools:
        """Return which rows have a retry that waits to be written; bool[n]."""
        waiting = [
            one.offsets
            for one in self._waiting_items
            if isinstance(one, RowRetry) and one.table is table
        ]
        return np.isin(offsets, np.concatenate([np.zeros(0, np.int64), *waiting]))

    def _forget(self, table: ServedTable, offsets: Int64s) -> None:
        """Forget messages whose rows were changed by SQL, unless they are in flight again."""
        offsets = offsets[table.cached.contains(offsets)]
        offsets = offsets[~table.subscription.in_flight.offsets.contains(offsets)]
        if len(offsets):
            table.subscription.forget(offsets[~table.subscription.acked.contains(offsets)])


def _without_empty(items: deque[RowItem]) -> deque[RowItem]:
    """Leave out retries without rows."""
    return deque(item for item in items if item.ids or isinstance(item, RowAck))
