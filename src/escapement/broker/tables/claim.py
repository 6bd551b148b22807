"""A claim: records in the database that messages are sent, right before they are sent.

To the sender a claim is the read of messages from an index (``storage/index/plan.py``). It has
four steps. All but the second are in the event loop.

1. ``__init__``: note the rows, the version that the broker knows of each, and the version that each
   will have. The rows are in flight, so they do not change here.
2. ``make``, in a thread: lock the rows that still have the known version, write the new one, and
   read their values. Claims that wait are made in one transaction, and a claim may be made in
   several (``claims.py``).
3. ``settle``: note the outcome, before the sender continues.
4. ``read_there``: return the messages.

A row that has another version, or is gone, was changed by SQL. The subscription forgets it, and a
poll finds it if it is still to be sent. A row that another session has locked, or that could not be
claimed because the database failed, is *busy*: the subscription tries it again after a moment.

Some rows can never be sent as they are. A row that is too large for a message is recorded as sent,
and then it is lost, so a poll finds it at its new ``time_next``. A row that the database refuses to
update is *refused*: the subscription tries it again when it would send it again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.broker.tables.cached_rows import CachedRows
from escapement.errors import StorageError
from escapement.message import MAX_PRIORITY, Blobs, Int64s, MessageBatch
from escapement.protocol.limits import MAX_FRAME_BYTES
from escapement.storage.encoding.attempts import MOST_ATTEMPTS
from escapement.storage.engine.base import Connection
from escapement.tables.row_ids import RowId
from escapement.tables.row_statements import Claimed, RowStatements, Versions

NANOSECONDS: Final = 1_000_000


class Sending(NamedTuple):
    """How rows that are in flight were delivered: columns of equal height.

    ``counts`` has how often each was delivered, with this time. ``deadline_ms`` is when each is
    sent again if it is not acknowledged.
    """

    counts: Int64s
    deadline_ms: Int64s


class Unsendable(NamedTuple):
    """Why a row cannot be sent, and when it is tried again."""

    error: StorageError
    next_ms: int


class Outcome(NamedTuple):
    """The outcome of a claim: which of the rows were not claimed.

    ``lost`` are the offsets of rows that were changed by SQL, or are too large. ``refused`` are
    those of rows that the database refuses to update, which wait until ``refused_ms``. The others
    are tried again. ``is_stuck`` says that no row was claimed, although some are busy. ``took_s``
    is the time that the database took for the claim. ``unsendable`` says for each row that cannot
    be sent why, and until when it waits.
    """

    lost: Int64s
    refused: Int64s
    refused_ms: Int64s
    is_stuck: bool
    took_s: float
    unsendable: dict[RowId, Unsendable]


# The size of the largest row that fits in a frame, with room for the other columns of the frame.
MOST_ROW_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024


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
        # The outcome of each row of ``ids``, by its position.
        self._is_settled = np.zeros(len(self.ids), bool)  # a transaction about it was committed
        self._is_taken = np.zeros(len(self.ids), bool)
        self._is_busy = np.zeros(len(self.ids), bool)
        self._payloads: list[bytes] = []  # of the taken rows
        self._unsendable: dict[int, StorageError] = {}
        self._large: list[int] = []
        self.has_failed = False  # an error concerned more than single rows
        self.took_s = 0.0  # how long the database took for it

    def read(self) -> MessageBatch:
        raise AssertionError("rows of tables are not read ahead")

    def make(self, connection: Connection, rows: slice, most_bytes: int) -> Claimed:
        """Claim rows in a transaction of the caller; blocking.

        After the commit, the caller must call ``made``.

        Args:
          rows: which of the ids.
          most_bytes: the size of the values of all these rows. Further rows are busy.
        """
        longest = max(map(len, self._keys[rows]), default=0)
        return self.statements.claim(
            connection,
            self.ids[rows],
            Versions(*(column[rows] for column in self.known)),
            self.epochs[rows],
            self.times_ns[rows],
            MOST_ROW_BYTES - longest,
            most_bytes,
        )

    def made(self, rows: slice, claimed: Claimed) -> None:
        """Note that a transaction is committed. Parts of a claim are made in order."""
        self._is_settled[rows] = True
        self._is_taken[rows.start + claimed.taken] = True
        self._is_busy[rows.start + claimed.busy] = True
        self._payloads += claimed.payloads
        for at, size_bytes in claimed.large.items():
            row = rows.start + at
            self._large.append(row)
            self._unsendable[row] = StorageError(
                f"row {self.ids[row]!r} has {size_bytes:,} bytes, more than a message can have"
                f" ({MOST_ROW_BYTES - len(self._keys[row]):,}), so it is not sent. Acknowledge the"
                " row, or leave large columns out with the directive message_cols."
            )

    def refuse(self, row: int, error: StorageError) -> None:
        """Note that the database refuses to update one row, given by its position in ``ids``."""
        self._unsendable[row] = StorageError(f"row {self.ids[row]!r} cannot be updated: {error}")

    def read_there(self, low: int, high: int) -> tuple[Int64s | None, MessageBatch]:
        """Return the positions of the claimed rows, and a batch of these.

        The positions are None if all rows were claimed. The arguments have no meaning here.
        """
        taken = np.flatnonzero(self._is_taken)
        at = self._here[taken]
        priorities = np.clip(self.known.priorities[taken], 0, MAX_PRIORITY).astype(np.uint8)
        batch = MessageBatch(
            Blobs.of(self._payloads),
            Blobs.of([self._keys[row] for row in taken.tolist()]),
            priorities=priorities,
            fields=self.statements.fields,
        )
        return (None if len(at) == len(self.offsets) else at), batch

    def settle(self, rows: CachedRows, poll: int) -> Outcome:
        """Note the new versions of the claimed rows, and return which rows were not claimed."""
        left = np.ones(len(self.offsets), bool)
        left[self._here[self._is_taken]] = False
        busy = ~self._absent
        busy[self._here] = self._is_busy | ~self._is_settled
        here = self.offsets[self._here]
        written = self._is_taken.copy()
        written[self._large] = True
        written &= rows.contains(here)  # others were acknowledged meanwhile
        rows.set_versions(here[written], self.epochs[written], self.times_ns[written], poll)
        refused = np.array([at for at in self._unsendable if at not in self._large], np.int64)
        busy[self._here[refused]] = False
        rows.set_refused(here[self._is_settled], False)
        rows.set_refused(here[refused], True)
        lost = left & ~busy
        lost[self._here[refused]] = False
        next_ms = self.times_ns // NANOSECONDS
        return Outcome(
            self.offsets[lost],
            here[refused],
            next_ms[refused],
            bool(left.all() and (left & busy).any()),
            self.took_s,
            {
                self.ids[at]: Unsendable(error, int(next_ms[at]))
                for at, error in self._unsendable.items()
            },
        )
