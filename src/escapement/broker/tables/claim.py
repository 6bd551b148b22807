"""A claim: records in the database that messages are sent, right before they are sent.

To the sender a claim is the read of messages from an index (``storage/index/plan.py``). It has
three steps:

1. ``__init__``, in the event loop: note the rows, the version that the broker knows of each, and
   the version that each will have. The rows are in flight, so they do not change here.
2. ``read_there``, in a thread: one transaction locks the rows that still have the known version,
   writes the new one, and reads their values.
3. ``settle``, in the event loop: note the outcome, before the sender continues.

A row that has another version, or is gone, was changed by SQL. The subscription forgets it, and a
poll finds it if it is still to be sent. A row that another session has locked, or that could not be
claimed because the database failed, is *busy*: the subscription tries it again after a moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy as np

from escapement.broker.tables.cached_rows import CachedRows
from escapement.errors import StorageError
from escapement.message import MAX_PRIORITY, Blobs, Int64s, MessageBatch
from escapement.storage.encoding.attempts import MOST_ATTEMPTS
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
    ``is_stuck`` says that no row was claimed, although some are not lost.
    """

    lost: Int64s
    is_stuck: bool


class RunClaim(Protocol):
    """Makes a claim in a transaction on the connection for claims; blocking."""

    def __call__(self, claim: Claim) -> Claimed: ...


class Claim:
    """A claim of some rows of one table.

    Args:
      offsets: the rows, which are in flight.
      claimed: rows with a claim that is not settled yet. They are busy.
      make: makes the claim in the database.
      on_ended: called in the thread when the claim has ended; then ``settle`` must follow.
    """

    in_memory: Final = False

    def __init__(
        self,
        statements: RowStatements,
        rows: CachedRows,
        offsets: Int64s,
        sending: Sending,
        claimed: Int64s,
        make: RunClaim,
        on_ended: Callable[[Claim], None],
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
        self._make = make
        self._on_ended = on_ended
        self._claimed: Claimed | None = None
        self.error: StorageError | None = None

    def read(self) -> MessageBatch:
        raise AssertionError("rows of tables are not read ahead")

    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]:
        """Claim the rows. Return the positions of the claimed ones, and a batch of these; blocking.

        The positions are None if all rows were claimed. The arguments have no meaning here.
        """
        claimed = Claimed(np.zeros(0, np.int64), np.arange(len(self.ids)), [])
        try:
            if self.ids:
                claimed = self._claimed = self._make(self)
        except StorageError as error:
            self.error = error  # and the rows are busy
        finally:
            self._on_ended(self)
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
        return Outcome(self.offsets[left & ~busy], bool(left.all() and (left & busy).any()))
