"""What a consumer has acknowledged, until it is durable: gathered and sent in columns.

Acknowledgements gather like messages in an outbox: while none is under way they go at
once, while one is, they gather until its answer is there, ``LINGER_S`` has passed, or
there are ``MAX_ROWS``. Every one is answered; what was not answered when a connection
was lost is sent again on the next, because the broker knows a message by its offset
whoever holds it.

A *slip* is one Ack. Those that somebody wants counted are slips of their own.

Pure: takes the time as an argument, sends nothing itself.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final

import numpy as np

from escapement.client.promise import Promise
from escapement.client.retry import Retry
from escapement.errors import EscapementError
from escapement.message import Int64s

# A frame this long costs the broker a millisecond or two, and there may be another.
MAX_ROWS: Final = 65_536
# As a producer's: below what anyone notices, above what a loaded loop takes for a turn.
LINGER_S: Final = 0.005
# Unanswered rows, above which acknowledging waits: 8 MB, at most twice over.
MAX_UNANSWERED_ROWS: Final = 1_000_000
NEVER: Final = float("inf")


class Slip(Promise):
    """One Ack: offsets, ranges, or both. Settled when it is durable, or has failed."""

    __slots__ = (
        "_columns",
        "_firsts",
        "_lasts",
        "_ones",
        "count",
        "error",
        "rows",
        "sent",
        "since",
    )

    def __init__(self, now_s: float) -> None:
        super().__init__()
        self.since = now_s
        self.rows = 0
        self.count = 0  # on how many messages it took effect
        self.error: EscapementError | None = None
        self.sent = False
        self._ones = array("q")
        self._columns: list[Int64s] = []
        self._firsts = array("q")
        self._lasts = array("q")

    def add_one(self, offset: int) -> None:
        self._ones.append(offset)
        self.rows += 1

    def add(self, offsets: Int64s) -> None:
        """Add a column, as one range if it is one."""
        rows = len(offsets)
        if rows > 1 and offsets[-1] - offsets[0] == rows - 1 and (np.diff(offsets) == 1).all():
            self.add_range(int(offsets[0]), int(offsets[-1]) + 1)
        else:
            self._columns.append(offsets)
            self.rows += rows

    def add_range(self, first: int, last: int) -> None:
        """Add ``first .. last - 1``."""
        self._firsts.append(first)
        self._lasts.append(last)
        self.rows += 1

    def columns(self) -> tuple[Int64s | None, Int64s | None, Int64s | None]:
        """``offsets, firsts, lasts`` as an Ack has them."""
        parts = list(self._columns)
        if self._ones:
            parts.append(np.frombuffer(self._ones.tobytes(), np.int64))
        firsts = lasts = None
        if self._firsts:
            firsts = np.frombuffer(self._firsts.tobytes(), np.int64)
            lasts = np.frombuffer(self._lasts.tobytes(), np.int64)
        if not parts:
            return None, firsts, lasts
        return parts[0] if len(parts) == 1 else np.concatenate(parts), firsts, lasts


class AckBox:
    """The unanswered acknowledgements of one consumer.

    ``_slips`` holds the closed ones in the order in which they were made; the first
    ``_under_way`` of those not sent again are marked ``sent``.
    """

    def __init__(self, retry: Retry) -> None:
        self.rows = 0
        self._open: Slip | None = None
        self._slips: deque[Slip] = deque()
        self._retry = retry
        self._retry_at = -NEVER

    @property
    def full(self) -> bool:
        """Whether acknowledging has to wait for answers."""
        return self.rows >= MAX_UNANSWERED_ROWS

    @property
    def unsettled(self) -> list[Slip]:
        """What a flush has to wait for."""
        return [*self._slips, *([self._open] if self._open is not None else [])]

    @property
    def begun(self) -> Slip | None:
        """The slip to add to, if it has been begun."""
        return self._open

    def gathering(self, now_s: float) -> Slip:
        """The slip to add to; call ``added`` afterwards."""
        if self._open is None:
            self._open = Slip(now_s)
        return self._open

    def added(self, rows: int) -> None:
        """So many rows were added to the gathering slip."""
        self.rows += rows
        assert self._open is not None
        if self._open.rows >= MAX_ROWS:
            self._close()

    def put(self, slip: Slip) -> None:
        """Take a slip that is complete."""
        self._slips.append(slip)
        self.rows += slip.rows

    def take(self, now_s: float) -> tuple[list[Slip], float]:
        """The slips to send now, and when to ask again."""
        if now_s < self._retry_at:
            return [], self._retry_at if self._slips or self._open else NEVER
        gathering = self._open
        if gathering is not None and (not self._slips or now_s >= gathering.since + LINGER_S):
            self._close()
        found = [slip for slip in self._slips if not slip.sent]
        for slip in found:
            slip.sent = True
        return found, NEVER if self._open is None else self._open.since + LINGER_S

    def answered(self, slip: Slip, count: int) -> None:
        """It is durable, and took effect on ``count`` messages."""
        self._retry.succeeded()
        slip.count = count
        self._settle(slip)

    def refused(self, slip: Slip, error: EscapementError, now_s: float) -> None:
        """It did not take effect: sent again later if that may help, else failed."""
        if error.retryable:
            slip.sent = False
            if now_s >= self._retry_at:
                self._retry_at = now_s + self._retry.next_s(now_s)
        else:
            slip.error = error
            self._settle(slip)

    def lost(self) -> None:
        """The connection is gone: send what is unanswered again on the next."""
        for slip in self._slips:
            slip.sent = False
        self._retry_at = -NEVER

    def fail(self, error: EscapementError) -> None:
        """Nothing more can be sent."""
        self._close()
        for slip in list(self._slips):
            slip.error = error
            self._settle(slip)

    def _close(self) -> None:
        if self._open is not None:
            self._slips.append(self._open)
            self._open = None

    def _settle(self, slip: Slip) -> None:
        if not slip.settled:
            self._slips.remove(slip)
            self.rows -= slip.rows
            slip.settle()
