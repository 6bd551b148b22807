"""Ready messages of a subscription with an order: a queue for each key.

The first row of each queue, its *head*, is in the key table
(:mod:`~escapement.broker.subscription.keys.key_table`), with the number of rows behind it. So the
next deliverable messages are found among the heads alone, however long the queues are. The other
rows are sorted by key (:mod:`~escapement.broker.subscription.keys.sorted_runs`). When a head is
taken, a next head is sought there only if its queue has more rows. Messages without a key are kept
apart, because no other message holds them up. If the whole topic is ordered, all messages are in
one queue.

Rows arrive in any order. A row that precedes the head of its queue replaces it. New rows are
gathered, and put into their queues together by ``lay_in``.

Invariants (``_check``): a queue with rows has a head, which precedes its other rows; the counts are
right.

Pure. Callers pass in which keys are *closed*: busy, or wanted by no consumer now.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.broker.subscription.keys.key_table import (
    NO_INDEX,
    NO_KEY,
    Indexes,
    KeyTable,
)
from escapement.broker.subscription.keys.sorted_runs import SortedRuns, queue_order
from escapement.broker.subscription.priorities.band import BANDS, NORMAL, bands_of
from escapement.broker.subscription.priorities.ready import Pile, Rows, goes_before
from escapement.message import Bools, Int64s
from escapement.storage.index.keys import Key, position, sorted_order

# When there are too many rows, the queues are cut to the first of these lengths that frees enough.
_KEPT_OF_EACH: Final = (64, 16, 4, 1, 0)


class KeyQueues:
    """Queues of ready rows by key.

    Args:
      ageing_ms: how many ms a step of priority is worth; see ``Rows.ranks``.
    """

    __slots__ = ("_ageing_ms", "_free", "_fresh", "_new", "_runs", "_table")

    def __init__(self, table: KeyTable, ageing_ms: int) -> None:
        self._table = table
        self._ageing_ms = ageing_ms
        self._runs = SortedRuns(table, ageing_ms)
        self._free = Pile(ageing_ms)
        self._new: list[Rows] = []  # added rows that are not in queues yet
        self._fresh = dict.fromkeys(BANDS, 0)

    def __len__(self) -> int:
        heads = int(np.count_nonzero(self._table.there))
        new = sum(rows.height for rows in self._new)
        return heads + self._runs.count + self._free.count + new

    def fresh_of(self, which: int) -> int:
        """Return the number of never-sent rows of a priority band."""
        return self._fresh[which]

    def _count(self, rows: Rows, sign: int) -> None:
        fresh = rows.attempts == 0
        if rows.traits is None:
            self._fresh[NORMAL] += sign * int(np.count_nonzero(fresh))
            return
        bands = bands_of(rows.traits[fresh])
        for which in BANDS:
            self._fresh[which] += sign * int(np.count_nonzero(bands == which))

    # -- adding and removing ---------------------------------------------------------

    def push(self, rows: Rows) -> None:
        """Add rows, in any order; O(log n) a row."""
        self._count(rows, 1)
        self._new.append(rows)

    def lay_in(self) -> None:
        """Put all added rows into their queues; keys may get other indexes in the table."""
        if not self._new:
            return
        rows, self._new = Rows.concat(self._new), []
        key_hashes = self._table.key_hashes_of(rows)
        keyed = key_hashes != NO_KEY
        if not keyed.all():
            self._free.push(rows.pick(~keyed).in_order(self._ageing_ms))
            rows, key_hashes = rows.pick(keyed), key_hashes[keyed]
        if rows.height:
            self._lay_in(rows, key_hashes)

    def _lay_in(self, rows: Rows, key_hashes: Int64s) -> None:
        table, ranks = self._table, rows.ranks(self._ageing_ms)
        order = queue_order(key_hashes, ranks, rows.offsets)
        rows, key_hashes, ranks = rows.pick(order), key_hashes[order], ranks[order]
        first = np.flatnonzero(np.diff(key_hashes, prepend=-1))
        indexes = table.find_or_add(key_hashes[first])
        there, heads = table.there[indexes], table.heads.offsets[indexes]
        before = goes_before(ranks[first], rows.offsets[first], table.ranks[indexes], heads)
        table.behind[indexes] += np.diff(first, append=rows.height) - ~there
        # A head that a new row precedes goes behind the new head.
        displaced = table.heads.pick(indexes[there & before])
        leads = before | ~there
        ahead = first[leads]
        self._set_heads(indexes[leads], rows.pick(ahead))
        behind = np.delete(np.arange(rows.height), ahead)
        self._runs.add(Rows.concat([rows.pick(behind), displaced]))

    def count_open(self, closed: Bools) -> int:
        """Return the number of deliverable messages, which ``open`` would return.

        Args:
          closed: which keys, by index, cannot be delivered now; bool[keys].
        """
        return int(np.count_nonzero(self._table.there & ~closed)) + self._free.count

    def open(self, closed: Bools, most: int, *, all_heads: bool) -> tuple[Rows, Indexes]:
        """Return the next deliverable rows, in order, without removing them.

        These are heads of queues and rows without a key. ``lay_in`` must have been called.

        Args:
          closed: which keys, by index, cannot be delivered now; bool[keys].
          most: how many rows are wanted.
          all_heads: whether to return the heads of all queues that are not closed, however many.

        Returns:
          The rows, and the index of each row's key, ``NO_INDEX`` for a row without a key.
        """
        assert not self._new
        table = self._table
        at = np.flatnonzero(table.there & ~closed)
        if len(at) > most and not all_heads:
            ranks = table.ranks[at]
            at = at[ranks <= np.partition(ranks, most - 1)[most - 1]]
        if len(at):
            at = at[sorted_order(table.ranks[at], table.heads.offsets[at])]
        at = at if all_heads else at[:most]
        heads = table.heads.pick(at)
        if not self._free.count:
            return heads, at
        free = self._free.first(most)
        both = Rows.concat([heads, free])
        order = sorted_order(both.ranks(self._ageing_ms), both.offsets)
        order = order if all_heads else order[:most]
        return both.pick(order), np.append(at, np.full(free.height, NO_INDEX))[order]

    def take(self, rows: Rows, indexes: Indexes) -> None:
        """Remove rows that ``open`` has just returned; the next row of each queue becomes its head.

        Args:
          rows: some of the returned rows, in the same order.
          indexes: the index of each row's key, as returned with the rows.
        """
        self._count(rows, -1)
        free = indexes == NO_INDEX
        if free.any():
            self._take_free(rows.offsets[free])
            indexes = indexes[~free]
        self._move_up(indexes)

    def _take_free(self, offsets: Int64s) -> None:
        first = self._free.take(len(offsets))
        if not np.array_equal(first.offsets, offsets):
            self._free.push(first)
            self._free.withdraw(offsets)

    def withdraw(self, offsets: Int64s) -> None:
        """Remove the rows of these messages; O(rows)."""
        rows = self.drain()
        self.push(rows.pick(~np.isin(rows.offsets, offsets)))

    def recall(self, which: int, key: Key) -> Int64s:
        """Remove the never-sent rows of a priority band from a position on. O(rows).

        Returns the offsets of the removed rows.

        Args:
          key: the position in the delivery order, ``(due_ms, offset)``.
        """
        rows = self.rows()
        rows = rows.pick(rows.attempts == 0)
        if rows.traits is not None:
            rows = rows.pick(bands_of(rows.traits) == which)
        elif which != NORMAL:
            return rows.offsets[:0]
        rows = rows.in_order()
        gone: Int64s = rows.offsets[position(rows.due_ms, rows.offsets, key) :]
        if len(gone):
            self.withdraw(gone)
        return gone

    def drain(self) -> Rows:
        """Remove and return all rows, in no order."""
        rows = self.rows()
        self._clear_queues()
        self._new, self._free = [], Pile(self._ageing_ms)
        self._fresh = dict.fromkeys(BANDS, 0)
        return rows

    def rows(self) -> Rows:
        """Return a copy of all rows, in no order."""
        return Rows.concat([self._queued(), *self._free.runs, *self._new])

    def never_sent(self, offsets: Int64s) -> Bools:
        """Return which of these messages are ready and were never sent; bool[n]. O(rows)."""
        rows = self.rows()
        return np.isin(offsets, rows.offsets[rows.attempts == 0])

    def set_ageing(self, ageing_ms: int) -> None:
        """Set another ``ageing_ms``, and sort all rows again by their new ranks."""
        self._ageing_ms = ageing_ms
        self.push(self.drain())

    # -- shortening ------------------------------------------------------------------

    def shorten(self, closed: Bools, most: int) -> Rows:
        """Remove and return the ends of long queues, so that ``most`` fresh rows are left.

        Some rows always stay: rows that were sent before, the rows before them in their queue, the
        heads of queues that are not closed, and rows without a key. So more rows may be left.
        ``lay_in`` must have been called. O(rows).

        Args:
          closed: which keys, by index, cannot be delivered now; bool[keys].
          most: how many fresh rows, which were never sent, may be left.
        """
        assert not self._new
        rows = self._queued()
        if not rows.height:
            return rows
        key_hashes, ranks = self._table.key_hashes_of(rows), rows.ranks(self._ageing_ms)
        order = queue_order(key_hashes, ranks, rows.offsets)
        rows, key_hashes = rows.pick(order), key_hashes[order]
        begins = np.flatnonzero(np.diff(key_hashes, prepend=-1))
        lengths = np.diff(begins, append=rows.height)
        positions = np.arange(rows.height)
        sent = np.maximum.reduceat(np.where(rows.attempts > 0, positions, -1), begins)
        may_go = positions > np.repeat(sent, lengths)
        behind = positions - np.repeat(begins, lengths)
        keys, _ = self._table.find(key_hashes[begins])
        may_stay = np.repeat(~closed[keys], lengths)
        over = sum(self._fresh.values()) - most
        for kept in _KEPT_OF_EACH:
            gone = may_go & (behind >= np.maximum(kept, may_stay))
            if np.count_nonzero(gone) >= over:
                break
        self._count(rows, -1)
        self._clear_queues()
        self.push(rows.pick(~gone))
        self.lay_in()
        return rows.pick(gone)

    def _queued(self) -> Rows:
        """Return a copy of all rows in queues, in no order."""
        heads = self._table.heads.pick(np.flatnonzero(self._table.there))
        return Rows.concat([heads, self._runs.rows()])

    def _clear_queues(self) -> None:
        self._table.there[:] = False
        self._table.behind[:] = 0
        self._runs = SortedRuns(self._table, self._ageing_ms)

    # -- heads -----------------------------------------------------------------------

    def _set_heads(self, indexes: Indexes, rows: Rows) -> None:
        """Make these rows the heads of their queues."""
        table = self._table
        table.there[indexes] = True
        table.ranks[indexes] = rows.ranks(self._ageing_ms)
        table.heads.due_ms[indexes] = rows.due_ms
        table.heads.offsets[indexes] = rows.offsets
        table.heads.attempts[indexes] = rows.attempts
        assert table.heads.traits is not None
        table.heads.traits[indexes] = 0 if rows.traits is None else rows.traits

    def _move_up(self, indexes: Indexes) -> None:
        """Make the next row of each of these queues its head; O(queues with more rows * runs)."""
        table = self._table
        table.there[indexes] = False
        indexes = indexes[table.behind[indexes] > 0]
        if not len(indexes):
            return
        table.behind[indexes] -= 1
        indexes = indexes[np.argsort(table.key_hashes[indexes])]
        for which, rows in self._runs.take_first(table.key_hashes[indexes]):
            self._set_heads(indexes[which], rows)
        assert table.there[indexes].all(), "a row behind a head is lost"

    def _check(self) -> None:
        """Assert every invariant."""
        table = self._table
        table._check()
        self._runs._check()
        rows = self.rows()
        assert len(np.unique(rows.offsets)) == rows.height == len(self)
        fresh = self._fresh.copy()
        self._count(rows, -1)
        assert not any(self._fresh.values()), "the count of never-sent rows is wrong"
        self._fresh = fresh
        rows = self._runs.rows()
        indexes, known = table.find(table.key_hashes_of(rows))
        assert known.all(), "a key that has rows is not in the table"
        behind = np.bincount(indexes, minlength=len(table.behind))
        assert np.array_equal(table.behind, behind), "the count of a queue is wrong"
        assert table.there[indexes].all(), "a queue has no head"
        heads = table.ranks[indexes], table.heads.offsets[indexes]
        assert goes_before(*heads, rows.ranks(self._ageing_ms), rows.offsets).all()
