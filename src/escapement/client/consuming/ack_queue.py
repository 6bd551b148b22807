"""The ack queue: a consumer's acknowledgements until they are durable.

A *pending ack* is a group of acknowledged offsets that is sent to the broker as one Ack command.
The broker answers each Ack when it is durable. While the *open* pending ack collects
acknowledgements, earlier ones are *closed*: nothing is added to them any more.

While no closed pending ack is unanswered, the open one is closed and sent at once. Otherwise it
stays open until the earlier ones are answered, ``LINGER_S`` has passed, or it has ``MAX_ROWS``
rows. A row is one offset, or one range of consecutive offsets. A caller that waits until its
acknowledgement is durable, and needs the number of messages, gets a pending ack of its own.

When the connection is lost, unanswered pending acks are sent again on the next connection. That is
possible because the broker identifies a message by its offset, independent of the consumer.

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

# The open pending ack is closed when it has this many rows. The broker handles an Ack of this size
# in one or two milliseconds.
MAX_ROWS: Final = 65_536
# How long the open pending ack collects acknowledgements. Too short for users to notice, and longer
# than one turn of a busy event loop.
LINGER_S: Final = 0.005
# Callers that acknowledge must wait while this many rows are unanswered. An offset takes 8 bytes
# and a range 16, so the queue takes 8 to 16 MB.
MAX_UNANSWERED_ROWS: Final = 1_000_000


class PendingAck(Promise):
    """Acknowledged offsets and ranges, to be sent as one Ack command.

    The promise settles when the acknowledgement is durable, or has failed with ``error``.
    """

    __slots__ = (
        "_columns",
        "_firsts",
        "_lasts",
        "_ones",
        "awaited",
        "count",
        "error",
        "rows",
        "sent",
        "since_s",
    )

    def __init__(self) -> None:
        super().__init__()
        self.since_s = inf  # the time from which ``LINGER_S`` counts
        self.rows = 0
        self.count = 0  # the number of messages that the broker acknowledged because of it
        self.error: EscapementError | None = None
        self.sent = False
        self.awaited = False  # whether a caller waits for it alone, and raises its error
        self._ones = array("q")
        self._columns: list[Int64s] = []
        self._firsts = array("q")
        self._lasts = array("q")

    def add_one(self, offset: int) -> None:
        """Add one offset."""
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
        """Add the range of offsets ``first .. last - 1``."""
        self._firsts.append(first)
        self._lasts.append(last)
        self.rows += 1

    def columns(self) -> tuple[Int64s | None, Int64s | None, Int64s | None]:
        """Return the columns of an Ack command, each None if it is empty.

        Returns:
          The single offsets, the firsts of the ranges, and their ends (last offset + 1).
        """
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

    ``rows`` is the number of rows in all unanswered pending acks. ``refusal`` is the first error
    with which the broker has refused a pending ack for good, except those with a caller that waits
    for them alone. The consumer clears it. ``_open`` is the open pending ack, if any.
    ``_pending_acks`` holds the closed ones that are unanswered, oldest first. ``sent`` of a pending
    ack is True if it was sent on the current connection.
    """

    def __init__(self, retry: Retry) -> None:
        self.rows = 0
        self.refusal: EscapementError | None = None
        self._open: PendingAck | None = None
        self._pending_acks: deque[PendingAck] = deque()
        self._retry = retry

    @property
    def full(self) -> bool:
        """Whether callers must wait before they acknowledge more messages."""
        return self.rows >= MAX_UNANSWERED_ROWS

    @property
    def gathers(self) -> bool:
        """Whether the open pending ack collects acknowledgements."""
        return self._open is not None

    @property
    def unsettled(self) -> list[PendingAck]:
        """All pending acks that are neither durable nor failed, the open one last."""
        return [*self._pending_acks, *([self._open] if self._open is not None else [])]

    def gathering(self) -> PendingAck:
        """Return the open pending ack, which is created if needed.

        The caller adds offsets to it, and then calls ``added``.
        """
        if self._open is None:
            self._open = PendingAck()
        return self._open

    def added(self, rows: int) -> None:
        """Count ``rows`` that were added to the open pending ack, and close it if it is full."""
        self.rows += rows
        assert self._open is not None
        if self._open.rows >= MAX_ROWS:
            self._close()

    def put(self, pending_ack: PendingAck) -> None:
        """Queue a pending ack that is closed already, because its caller waits for it alone."""
        pending_ack.awaited = True
        self._pending_acks.append(pending_ack)
        self.rows += pending_ack.rows

    def take(self, now_s: float) -> tuple[list[PendingAck], float]:
        """Return the pending acks to send at ``now_s``, and mark them as sent.

        Returns:
          The pending acks, and when to call again on the same clock (infinity: not by itself).
        """
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
        """Settle a pending ack: the broker has acknowledged ``count`` messages, durably."""
        self._retry.succeeded()
        pending_ack.count = count
        self._settle(pending_ack)

    def refused(self, pending_ack: PendingAck, error: EscapementError, now_s: float) -> None:
        """Send a refused pending ack again later if ``error`` is retryable; otherwise fail it."""
        if error.retryable:
            pending_ack.sent = False
            self._retry.failed(now_s)
        else:
            pending_ack.error = error
            if not pending_ack.awaited:
                self.refusal = self.refusal or error
            self._settle(pending_ack)

    def lost(self) -> None:
        """Mark all pending acks as unsent, because the connection is lost."""
        for pending_ack in self._pending_acks:
            pending_ack.sent = False
        self._retry.at_s = -inf

    def fail(self, error: EscapementError) -> None:
        """Settle all pending acks as failed with ``error``."""
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
