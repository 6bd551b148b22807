"""A claim: records in the database that messages are sent, right before they are sent.

To the sender a claim is the read of messages from an index (``storage/index/plan.py``). It has
four steps. All but the second are in the event loop.

1. ``__init__``: note the rows, the version that the broker knows of each, and the version that each
   will have. The rows are in flight, so they do not change here.
2. ``make``, in a thread: lock the rows that still have the known version, write the new one, and
   read their values. Claims that wait are made in one transaction (``claims.py``).
3. ``settle``: note the outcome, before the sender continues.
4. ``read_there``: return the messages.

A row that has another version, or is gone, was changed by SQL. The subscription forgets it, and a
poll finds it if it is still to be sent. A row that another session has locked, or that could not be
claimed because the database failed, is *busy*: the subscription tries it again after a moment.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.broker.tables.cached_rows import CachedRows
from escapement.message import MAX_PRIORITY, Blobs, Int64s, MessageBatch
from escapement.storage.encoding.attempts import MOST_ATTEMPTS
from escapement.storage.engine.base import Connection
from escapement.tables.row_statements import Claimed, RowStatements, Versions

NANOSECONDS: Final = 1_000_000


class Sending(NamedTuple):
    """How rows that are in flight were delivered: columns of equal height.

    ``counts`` has how often each was delivered, with this time. ``deadline_ms`` is when each is
    sent again if it is not acknowledged.
    """

    counts: Int64s
    deadline_ms: Int64s


class Outcome(NamedTuple):
    """The outcome of a claim: which of the rows were not claimed.

    ``lost`` are the offsets of rows that were changed by SQL. The others are tried again.
    ``is_stuck`` says that no row was claimed, although some are not lost. ``took_s`` is the time
    that the database took for the claim.
    """

    lost: Int64s
    is_stuck: bool
    took_s: float


_NOTHING: Final = Claimed(np.zeros(0, np.int64), np.zeros(0, np.int64), [])


class Claim:
    """A claim of some rows of one table.

    Args:
      offsets: the rows, which are in flight.
      claimed: rows with a claim that is not settled yet. They are busy.
    """

    in_memory: Final = False

    def __init__(
        self,
        statements: RowStatements,
        rows: CachedRows,
        offsets: Int64s,
        sending: Sending,
        claimed: Int64s,
    ) -> None:
        self.statements = statements
        self.offsets = offsets
        # A row that was forgotten meanwhile, because its table was dropped, is lost.
        there = rows.contains(offsets)
        busy = np.isin(offsets, claimed)
        busy[there] |= rows.are_written(offsets[there])
        self._here = np.flatnonzero(there & ~busy)
        self._absent = ~there
        here = offsets[self._here]
        self.ids = rows.ids(here)
        self._keys = rows.keys(here)
        self.known: Versions = rows.versions(here)
        # The count of deliveries in memory stops at a limit; the epoch in the table goes on.
        counts = sending.counts[self._here]
        after = np.minimum(self.known.epochs, statements.table.layout.most_epoch - 1) + 1
        self.epochs = np.where(counts < MOST_ATTEMPTS, counts, after)
        self.times_ns = sending.deadline_ms[self._here] * NANOSECONDS
        self._claimed: Claimed | None = None
        self.has_failed = False
        self.took_s = 0.0  # how long the database took for it

    def read(self) -> MessageBatch:
        raise AssertionError("rows of tables are not read ahead")

    def make(self, connection: Connection) -> None:
        """Claim the rows in a transaction of the caller; blocking.

        If the transaction fails, the caller must call ``failed``.
        """
        if self.ids:
            self._claimed = self.statements.claim(
                connection, self.ids, self.known, self.epochs, self.times_ns
            )
        self.has_failed = False

    def failed(self) -> None:
        """Note that no row was claimed, as far as is known. All rows are busy."""
        self._claimed, self.has_failed = None, True

    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]:
        """Return the positions of the claimed rows, and a batch of these.

        The positions are None if all rows were claimed. The arguments have no meaning here.
        """
        claimed = self._claimed or _NOTHING
        taken = claimed.taken
        at = self._here[taken]
        priorities = np.clip(self.known.priorities[taken], 0, MAX_PRIORITY).astype(np.uint8)
        batch = MessageBatch(
            Blobs.of(claimed.payloads),
            Blobs.of([self._keys[row] for row in taken.tolist()]),
            priorities=priorities,
            fields=self.statements.fields,
        )
        return (None if len(at) == len(self.offsets) else at), batch

    def settle(self, rows: CachedRows, poll: int) -> Outcome:
        """Note the new versions of the claimed rows, and return which rows were not claimed."""
        left = np.ones(len(self.offsets), bool)
        busy = ~self._absent
        if self._claimed is not None:
            taken = self._claimed.taken
            here = self.offsets[self._here]
            known = taken[rows.contains(here[taken])]  # others were acknowledged meanwhile
            rows.set_versions(here[known], self.epochs[known], self.times_ns[known], poll)
            left[self._here[taken]] = False
            busy[self._here] = False
            busy[self._here[self._claimed.busy]] = True
        is_stuck = bool(left.all() and (left & busy).any())
        return Outcome(self.offsets[left & ~busy], is_stuck, self.took_s)
