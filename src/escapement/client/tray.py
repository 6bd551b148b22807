"""What was delivered and not yet taken out, and the credit that bounds it.

Of ``permits``, each is in one of three places: with the broker, who may send a message
for it (``_credit``); here, with a message that waits; or spent, by a message taken out
(``_taken``). Spent ones are given to the broker again when they are half of all, so that
it neither waits for us nor hears of every message.

Pure; holds what it is given and sends nothing.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from escapement.client.batch import Batch, Message
from escapement.errors import RemoteProtocolError
from escapement.message import Int64s


class Tray:
    """See the module's docstring."""

    __slots__ = ("_credit", "_current", "_permits", "_row", "_taken", "_waiting")

    def __init__(self, permits: int) -> None:
        self._permits = permits
        self._credit = 0
        self._taken = 0
        self._waiting: deque[Batch] = deque()
        self._current: Batch | None = None  # from which single messages are taken
        self._row = 0

    @property
    def empty(self) -> bool:
        return self._current is None and not self._waiting

    def put(self, batch: Batch) -> None:
        """Take in what was delivered.

        Raises:
          RemoteProtocolError: if there was no credit for it.
        """
        self._credit -= len(batch)
        if self._credit < 0:
            raise RemoteProtocolError(f"{-self._credit} messages came without credit")
        self._waiting.append(batch)

    def pop(self) -> Message | None:
        """Take out the next message. O(1)."""
        batch = self._current
        if batch is None:
            if not self._waiting:
                return None
            batch, self._row = self._waiting.popleft(), 0
            self._current = batch
        row = self._row
        self._row = row + 1
        if self._row == len(batch):
            self._current = None
        self._taken += 1
        return Message(batch, row)

    def pop_batch(self) -> Batch | None:
        """Take out what is left of the batch begun, or the next batch."""
        batch = self._current
        if batch is not None:
            batch, self._current = batch.rest(self._row), None
        elif self._waiting:
            batch = self._waiting.popleft()
        else:
            return None
        self._taken += len(batch)
        return batch

    def waiting(self) -> Int64s:
        """The offsets of what waits here, in no order."""
        parts = [batch.offsets for batch in self._waiting]
        if self._current is not None:
            parts.append(self._current.offsets[self._row :])
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def all_credit(self) -> int:
        """The credit of a consumer that has just been opened; the tray is empty."""
        assert self.empty, "what an earlier connection delivered was not cleared"
        self._credit, self._taken = self._permits, 0
        return self._permits

    def due_credit(self) -> int:
        """What to give to the broker now: nothing, or at least half of the permits."""
        taken = self._taken
        if 2 * taken < self._permits:
            return 0
        self._taken = 0
        self._credit += taken
        return taken

    def drop(self) -> int:
        """Drop what waits; returns the credit to give for it and for all that was taken out."""
        self._waiting.clear()
        self._current = None
        given = self._permits - self._credit
        self._credit, self._taken = self._permits, 0
        return given

    def clear(self) -> None:
        """Drop what waits: it will come again, or never."""
        self._waiting.clear()
        self._current = None
        self._credit = self._taken = 0
