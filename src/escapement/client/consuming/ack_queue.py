"""The ack queue: a consumer's acknowledgements until they are durable.

While no Ack is unanswered, acknowledgements are sent at once. Otherwise they are collected
in one pending ack, until the earlier Ack is answered, ``LINGER_S`` has passed, or there are
``MAX_ROWS`` rows. The broker answers every Ack. When the connection is lost, unanswered Acks
are sent again on the next connection: the broker identifies a message by its offset,
independent of the consumer.

A pending ack (``PendingAck``) becomes one Ack command. A durable acknowledgement, whose caller
needs the number of affected messages, gets a pending ack of its own.

This module is pure: it takes the time as an argument and sends nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from math import inf
from typing import Final

import numpy as np

from escapement.client.connection.promise import Promise
from escapement.client.connection.retry import Retry
from escapement.errors import EscapementError
from escapement.message import Int64s

# The broker handles an Ack of this size in one or two milliseconds.
MAX_ROWS: Final = 65_536
# Too short for users to notice, and longer than one turn of a busy event loop.
LINGER_S: Final = 0.005
# With more unanswered rows than this, acknowledging waits. 8 MB, or at most twice that.
MAX_UNANSWERED_ROWS: Final = 1_000_000


class PendingAck(Promise):
    """A pending ack: offsets, ranges, or both. It settles when it is durable or has failed."""

    __slots__ = (
        "_columns",
        "_firsts",
        "_lasts",
        "_ones",
        "count",
        "error",
        "rows",
        "sent",
        "since_s",
    )

    def __init__(self) -> None:
        super().__init__()
        self.since_s = inf  # when the queue was first asked for it
        self.rows = 0
        self.count = 0  # the number of messages that it acknowledged
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
        """Add a column of offsets, stored as one range if they are consecutive."""
        rows = len(offsets)
        if rows > 1 and offsets[-1] - offsets[0] == rows - 1 and (np.diff(offsets) == 1).all():
            self.add_range(int(offsets[0]), int(offsets[-1]) + 1)
        else:
            self._columns.append(offsets)
            self.rows += rows

    def add_range(self, first: int, last: int) -> None:
        """Add the offsets ``first .. last - 1``."""
        self._firsts.append(first)
        self._lasts.append(last)
        self.rows += 1

    def columns(self) -> tuple[Int64s | None, Int64s | None, Int64s | None]:
        """Return ``offsets``, ``firsts`` and ``lasts`` for an Ack command."""
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


class AckQueue:
    """The ack queue of one consumer.

    ``_pending_acks`` holds the closed pending acks, oldest first. Those that were sent on the
    current connection and are not answered have ``sent`` set.
    """

    def __init__(self, retry: Retry) -> None:
        self.rows = 0
        self._open: PendingAck | None = None
        self._pending_acks: deque[PendingAck] = deque()
        self._retry = retry

    @property
    def full(self) -> bool:
        """Whether acknowledging must wait for answers."""
        return self.rows >= MAX_UNANSWERED_ROWS

    @property
    def unsettled(self) -> list[PendingAck]:
        """The pending acks that a flush must wait for."""
        return [*self._pending_acks, *([self._open] if self._open is not None else [])]

    def gathering(self) -> PendingAck:
        """Return the open pending ack, creating it if needed; call ``added`` after adding."""
        if self._open is None:
            self._open = PendingAck()
        return self._open

    def added(self, rows: int) -> None:
        """Count rows that were added to the open pending ack, and close it if it is full."""
        self.rows += rows
        assert self._open is not None
        if self._open.rows >= MAX_ROWS:
            self._close()

    def put(self, pending_ack: PendingAck) -> None:
        """Queue a complete pending ack."""
        self._pending_acks.append(pending_ack)
        self.rows += pending_ack.rows

    def take(self, now_s: float) -> tuple[list[PendingAck], float]:
        """Return the pending acks to send now, and the time for the next call."""
        if now_s < self._retry.at_s:
            return [], self._retry.at_s if self._pending_acks or self._open else inf
        gathering = self._open
        if gathering is not None:
            gathering.since_s = min(gathering.since_s, now_s)
            if not self._pending_acks or now_s >= gathering.since_s + LINGER_S:
                self._close()
        found = [pending_ack for pending_ack in self._pending_acks if not pending_ack.sent]
        for pending_ack in found:
            pending_ack.sent = True
        return found, inf if self._open is None else self._open.since_s + LINGER_S

    def answered(self, pending_ack: PendingAck, count: int) -> None:
        """Settle a pending ack: it is durable and acknowledged ``count`` messages."""
        self._retry.succeeded()
        pending_ack.count = count
        self._settle(pending_ack)

    def refused(self, pending_ack: PendingAck, error: EscapementError, now_s: float) -> None:
        """Handle a refusal: send the pending ack again later if retryable, otherwise fail it."""
        if error.retryable:
            pending_ack.sent = False
            self._retry.failed(now_s)
        else:
            pending_ack.error = error
            self._settle(pending_ack)

    def lost(self) -> None:
        """Mark all pending acks as unsent, to be sent again on the next connection."""
        for pending_ack in self._pending_acks:
            pending_ack.sent = False
        self._retry.at_s = -inf

    def fail(self, error: EscapementError) -> None:
        """Fail all pending acks with ``error``."""
        self._close()
        for pending_ack in list(self._pending_acks):
            pending_ack.error = error
            self._settle(pending_ack)

    def _close(self) -> None:
        if self._open is not None:
            self._pending_acks.append(self._open)
            self._open = None

    def _settle(self, pending_ack: PendingAck) -> None:
        if not pending_ack.settled:
            self._pending_acks.remove(pending_ack)
            self.rows -= pending_ack.rows
            pending_ack.settle()
