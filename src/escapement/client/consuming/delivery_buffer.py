"""The delivery buffer: messages that a consumer has, and the application has not received yet.

*Permits* bound the buffer. The broker needs a permit for each message that it sends. A consumer
has a fixed number of permits, and each is in one of three states:

- granted to the broker and not used yet (``_credit``);
- used by a message in the buffer;
- free again, because the application has received the message (``free``).

When half of all permits are free, the consumer grants them to the broker again. So the broker does
not run out of permits, and the consumer does not send a command for every message.

A consumer that pulls has no permits between two pulls. The application takes all messages of a pull
at once.

An application may leave messages in the buffer until their ack deadline has passed. The broker may
then have delivered them to another consumer, so ``discard_late`` removes them.

This module is pure: it sends nothing and reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf

import numpy as np

from escapement.client.consuming.batch import Batch, Message
from escapement.errors import RemoteProtocolError
from escapement.message import Int64s


class DeliveryBuffer:
    """The delivery buffer of one consumer, with the consumer's ``permits``."""

    __slots__ = (
        "_credit",
        "_height",
        "_permits",
        "_row",
        "_rows",
        "_waiting",
        "enough",
        "free",
        "until_s",
    )

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._credit = 0
        self.free = 0  # how many permits are free again
        self.enough = (permits + 1) // 2  # credit is due when this many permits are free
        self._waiting: deque[Batch] = deque()
        self._begin_first()

    @property
    def empty(self) -> bool:
        """Whether the buffer has no messages."""
        return not self._waiting

    def put(self, batch: Batch) -> None:
        """Add a delivered batch, which uses up one granted permit per message.

        Raises:
          RemoteProtocolError: if the batch has more messages than the broker has permits.
        """
        self._credit -= len(batch)
        if self._credit < 0:
            raise RemoteProtocolError(
                f"the broker sent {-self._credit} messages more than it had permits for"
            )
        if len(batch):
            self._waiting.append(batch)
            if len(self._waiting) == 1:
                self._begin_first()

    def pop(self) -> Message | None:
        """Remove and return the next message, or None if the buffer is empty; O(1)."""
        for message in self._rows:
            self._row += 1
            self.free += 1
            if self._row == self._height:
                self._drop_first()
            return message
        return None

    def pop_batch(self) -> Batch | None:
        """Remove and return the rest of the first batch, or None if the buffer is empty."""
        if not self._waiting:
            return None
        batch = self._waiting[0]._rest(self._row)
        self.free += len(batch)
        self._drop_first()
        return batch

    def discard_late(self, now_s: float) -> int:
        """Discard the next messages whose ack deadline has passed, and return their number.

        Afterwards no ack deadline of the first batch has passed. The permits of the discarded
        messages are free.
        """
        late = 0
        while now_s > self.until_s:
            batch = self._waiting[0]._rest(self._row)
            left = batch._in_time(now_s)
            if left is None:
                late += len(batch)
                self._drop_first()
            else:
                late += len(batch) - len(left)
                self._waiting[0] = left
                self._begin_first()
        self.free += late
        return late

    def waiting(self) -> Int64s:
        """Return the offsets of the messages in the buffer."""
        parts = [np.zeros(0, np.int64), *[batch.offsets for batch in self._waiting]]
        return np.concatenate(parts)[self._row :]

    def due_credit(self) -> int:
        """Return how many permits to grant to the broker again: 0, or at least half of all.

        The buffer counts them as granted. The caller must send them.
        """
        if self.free < self.enough:
            return 0
        free, self.free = self.free, 0
        self._credit += free
        return free

    def grant_all(self) -> int:
        """Discard the buffered messages, and return how many permits to grant to the broker.

        With these, the broker has all permits of the consumer. The caller must send them.
        """
        given = self._permits - self._credit
        self.clear()
        self._credit = self._permits
        return given

    def begin_pull(self, permits: int) -> None:
        """Begin a pull of at most ``permits`` messages. ``grant_all`` then returns its permits."""
        assert self.empty, "messages of another pull"
        assert not self._permits, "another pull is in progress"
        self._permits = permits

    def stop_pull(self) -> None:
        """Grant no permits of the pull again if the connection is lost."""
        self._permits = 0

    def end_pull(self, now_s: float) -> tuple[list[Batch], int]:
        """Remove the messages of the pull, whose permits are void now.

        Returns:
          Those whose ack deadline has not passed, and the number of the others.
        """
        pulled = [left for one in self._waiting if (left := one._in_time(now_s)) is not None]
        late = sum(map(len, self._waiting)) - sum(map(len, pulled))
        self.clear()
        return pulled, late

    def clear(self) -> None:
        """Discard the buffered messages and all granted permits, when the connection has ended."""
        self._waiting.clear()
        self._begin_first()
        self._credit = self.free = 0

    def _drop_first(self) -> None:
        self._waiting.popleft()
        self._begin_first()

    def _begin_first(self) -> None:
        """Begin with the first batch: the row of its next message, its height, and its messages."""
        first = self._waiting[0] if self._waiting else None
        # The first ack deadline of the batch. Infinity: the buffer is empty, or there is none.
        self.until_s = inf if first is None else first._deadlines.first_s
        self._row, self._height = 0, 0 if first is None else len(first)
        self._rows: Iterator[Message] = iter(() if first is None else first)
