"""One batch on its way: it remembers what to tell its session when the outcome is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from escapement.broker.producer import Producer
from escapement.errors import EscapementError
from escapement.message import NO_TIMES, Buffer, MessageBatch, Times


@dataclass(slots=True, eq=False)
class Publication:
    """One batch, from its arrival to its receipt.

    Args:
      sequence: the number of its first message; ``after`` that of the one before it.
      body: the encoding of ``batch``, which the log stores as it is.
      done: called with the base offset (-1 if unknown) and whether any of it was stored
        before, when it is durable.
      failed: called with the reason, if it will not be.
    """

    sequence: int
    after: int
    batch: MessageBatch
    times: Times
    body: Buffer
    done: Callable[[int, bool], None]
    failed: Callable[[EscapementError], None]
    producer: Producer | None = None
    known: int = 0  # how many of the first messages were stored before

    @property
    def last_sequence(self) -> int:
        """The number of its last message."""
        return self.sequence + self.known + len(self.batch) - 1

    def trim(self, known: int) -> None:
        """Leave out the first messages, which are stored."""
        if not known:
            return
        rows = np.arange(known, len(self.batch))
        self.batch = self.batch.take(rows)
        self.body = self.batch.encode()
        delay_ms, at_ms = self.times.delay_ms, self.times.at_ms
        if self.times is not NO_TIMES:
            self.times = Times(
                None if delay_ms is None else delay_ms[known:],
                None if at_ms is None else at_ms[known:],
            )
        self.known = known

    def committed(self, base_offset: int) -> None:
        """It is durable, beginning at ``base_offset``."""
        assert self.producer is not None
        self.producer.committed(self.last_sequence, base_offset + len(self.batch) - 1)
        self.done(-1 if self.known else base_offset, bool(self.known))

    def refused(self, error: EscapementError) -> None:
        """It is not, and will not be."""
        assert self.producer is not None
        self.producer.refused(self.sequence + self.known)
        self.failed(error)
