"""Busy keys: no ready message of a busy key is delivered.

This serves a subscription whose policy asks for an order by key, or of the whole topic. A message
*holds* its key, which is then busy, while it is in flight and, unless the policy says otherwise,
while it is in retry. Keys with the same key hash (see ``escapement.traits``) count as one key. If
the whole topic is ordered, all messages have one key. The keys are in a *key table*
(:mod:`~escapement.broker.subscription.keys.key_table`).

Pure. It is not told of acknowledgements: ``settle`` is given the messages that the subscription
still has.
"""

from __future__ import annotations

import numpy as np

from escapement.broker.subscription.keys.key_table import NO_KEY, Indexes, KeyTable
from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet


class BusyKeys:
    """The messages that hold the keys of a table.

    For each busy key, the table has one message that holds it. Several messages may hold a key if
    they were in flight before the policy asked for an order. ``_others`` has the further messages.
    """

    __slots__ = ("_others", "_table")

    def __init__(self, table: KeyTable) -> None:
        self._table = table
        self._others = np.zeros((2, 0), np.int64)  # their key hashes, and their offsets

    def take(self, rows: Rows) -> None:
        """Let messages hold their keys; some messages may hold them already."""
        key_hashes, offsets = self._keyed(rows)
        self.take_at(self._table.find_or_add(key_hashes), offsets)

    def take_at(self, at: Indexes, offsets: Int64s) -> None:
        """Let messages hold their keys.

        Args:
          at: for each message, the index of its key in the key table.
          offsets: the messages; each has a key.
        """
        table = self._table
        free = ~table.busy[at]
        table.holders[at[free]] = offsets[free]
        table.busy[at] = True
        alone = table.holders[at] == offsets
        if not alone.all():
            alone |= np.isin(offsets, self._others[1])
            others = np.stack((table.key_hashes[at[~alone]], offsets[~alone]))
            self._others = np.concatenate((self._others, others), axis=1)

    def release(self, rows: Rows) -> None:
        """Release the keys of these messages."""
        key_hashes, offsets = self._keyed(rows)
        if self._others.shape[1]:
            self._others = self._others[:, ~np.isin(self._others[1], offsets)]
        table = self._table
        at, known = table.find(key_hashes)
        at = at[known]
        self._free(at[table.busy[at] & (table.holders[at] == offsets[known])])

    def settle(self, held: OffsetSet) -> None:
        """Release the keys of all messages that are not in ``held``. O(busy keys).

        Args:
          held: the messages that the subscription has ready, in flight or in retry.
        """
        if self._others.shape[1]:
            self._others = self._others[:, held.contains(self._others[1])]
        at = np.flatnonzero(self._table.busy)
        self._free(at[~held.contains(self._table.holders[at])])

    def _free(self, at: Indexes) -> None:
        """Release keys from their messages in the table; ``_others`` then go into the table."""
        self._table.busy[at] = False
        if self._others.shape[1] and len(at):
            (key_hashes, offsets), self._others = self._others, np.zeros((2, 0), np.int64)
            self.take_at(self._table.find_or_add(key_hashes), offsets)

    def _keyed(self, rows: Rows) -> tuple[Int64s, Int64s]:
        """Return the key hashes and offsets of the rows that have a key."""
        key_hashes = self._table.key_hashes_of(rows)
        keyed = key_hashes != NO_KEY
        return (
            (key_hashes, rows.offsets) if keyed.all() else (key_hashes[keyed], rows.offsets[keyed])
        )

    def _check(self) -> None:
        table = self._table
        offsets = np.concatenate((table.holders[table.busy], self._others[1]))
        assert len(np.unique(offsets)) == len(offsets), "a message holds twice"
        at, known = table.find(self._others[0])
        assert known.all(), "a key that is held is not in the table"
        assert table.busy[at].all(), "a key that is held is not busy"
