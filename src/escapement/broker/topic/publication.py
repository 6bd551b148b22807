"""One published batch on its way to the log, with the callbacks that report its outcome.

A message of the batch may have been stored before. Its *sequence* (the number that its producer
gave it) or its dedup key shows this. The broker removes such messages from the batch and reports
them as duplicates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.topic.dedup_keys import NEW, WAITING, DedupKeys
from escapement.broker.topic.producer import Producer
from escapement.dedup import Digests
from escapement.errors import EscapementError
from escapement.message import NO_TIMES, Buffer, Int64s, MessageBatch, Times, UInt8s

# Earlier than any publication time. With it, ``DedupKeys.find`` also finds keys whose dedup window
# has passed already.
_EVER_MS: Final = -(1 << 62)


class Stored(NamedTuple):
    """The outcome of a batch whose messages are all durable.

    Attributes:
      base_offset: the offset of the first message, if the others have the offsets that follow;
        else, or if the offsets are not known, -1.
      duplicate: whether some messages were stored before.
      offsets: the offset of each message, -1 if it is not known. None if ``base_offset`` says
        everything that is known.
      repeated: 1 for each message that was stored before, else 0; None if ``offsets`` is None.
      previous: the offset of the message that each message replaced or gave way to, -1 if there is
        none or it is not known; None if no message has a replace key.
    """

    base_offset: int
    duplicate: bool = False
    offsets: Int64s | None = None
    repeated: UInt8s | None = None
    previous: Int64s | None = None


class ReplaceColumns(NamedTuple):
    """The digests of messages' replace keys (zero for none), and their modes.

    See ``escapement.replacement``.
    """

    digests: Digests
    modes: Int64s


@dataclass(slots=True, eq=False)
class Publication:
    """One batch, from its arrival to its receipt.

    A batch of inbox entries has no producer and no sequences.

    Messages whose sequence was stored before leave ``batch``; only their count stays (``known``).
    Messages with a known dedup key leave ``batch`` too, but keep their row in ``found``.

    Args:
      sequence: the sequence of the first message.
      after: the sequence of the message before the batch, -1 if there is none.
      batch: the messages that must be stored.
      times: the requested due times of ``batch``.
      body: the encoding of ``batch``, which the log stores unchanged.
      done: called when the batch is durable.
      failed: called with the reason if the batch will not be stored.
      digests: the digests of the messages' dedup keys, V16[n].
      replace: the replace keys of ``batch``.
    """

    sequence: int
    after: int
    batch: MessageBatch
    times: Times
    body: Buffer
    done: Callable[[Stored], None]
    failed: Callable[[EscapementError], None]
    digests: Digests | None = None
    replace: ReplaceColumns | None = None
    producer: Producer | None = None
    known: int = 0  # how many messages at the start were stored before, by their sequence
    keys: DedupKeys | None = None  # the topic's dedup keys; None if the batch has none
    found: Int64s | None = None  # the result of ``DedupKeys.sort_out``; None: all keys are new
    last_sequence: int = field(init=False)  # of the last message, stored before or not

    def __post_init__(self) -> None:
        self.last_sequence = self.sequence + len(self.batch) - 1

    def trim(self, known: int) -> None:
        """Remove the first ``known`` messages, whose sequences were stored before."""
        if known:
            if self.digests is not None:
                self.digests = self.digests[known:]
            self._keep(np.arange(known, len(self.batch)))
            self.known = known

    def sort_out(self, keys: DedupKeys, since_ms: int) -> None:
        """Remove the messages whose dedup keys the topic knows already.

        Args:
          keys: the dedup keys of the topic.
          since_ms: ignore keys of messages published at or before this time.

        Raises:
          Busy: if there is no room for the new keys now; nothing has changed.
          LimitExceeded: if the batch has too many new keys; nothing has changed.
        """
        assert self.digests is not None
        found = keys.sort_out(self.digests, since_ms)
        self.keys = keys
        new = found == NEW
        if not new.all():
            self.found = found
            self._keep(np.flatnonzero(new))

    @property
    def new_digests(self) -> Digests | None:
        """The digests of the messages that must be stored; None if the batch has no dedup keys."""
        if self.digests is None or self.found is None:
            return self.digests
        new: Digests = self.digests[self.found == NEW]
        return new

    def queued(self) -> None:
        """Mark the new keys as waiting: the batch entered the commit pipeline."""
        if self.keys is not None and (digests := self.new_digests) is not None:
            self.keys.hold(digests)

    def _keep(self, rows: Int64s) -> None:
        self.batch = self.batch.take(rows)
        if self.replace is not None:
            digests, modes = self.replace
            self.replace = ReplaceColumns(digests[rows], modes[rows])
        self.body = self.batch.encode() if len(rows) else b""
        if not len(rows):
            self.times = NO_TIMES
        elif self.times is not NO_TIMES:
            self.times = self.times.take(rows)

    def committed(self, base_offset: int, previous: Int64s | None = None) -> None:
        """Report that the messages to be stored are durable, from ``base_offset`` on.

        All batches that entered the commit pipeline before this one are durable too.

        Args:
          previous: by message, the offset of the one that it replaced or gave way to, or -1.
        """
        if self.producer is not None:
            self.producer.committed(self.last_sequence, base_offset + len(self.batch) - 1)
        if previous is not None:
            previous = self._of_whole_batch(previous)
        if self.found is None:
            first = -1 if self.known else base_offset
            self.done(Stored(first, bool(self.known), previous=previous))
            return
        assert self.keys is not None
        assert self.digests is not None
        offsets = self.found
        repeated = offsets != NEW
        offsets[~repeated] = np.arange(base_offset, base_offset + len(self.batch))
        waiting = np.flatnonzero(offsets == WAITING)
        if len(waiting):
            offsets[waiting] = self.keys.find(self.digests[waiting], _EVER_MS)
        before = self.known
        self.done(
            Stored(
                -1,
                True,
                np.concatenate([np.full(before, -1), offsets]),
                np.concatenate([np.ones(before, np.uint8), repeated.astype(np.uint8)]),
                previous,
            )
        )

    def _of_whole_batch(self, stored: Int64s) -> Int64s:
        """Return a column of the stored messages for the batch as it arrived, with -1 for others.

        Call it before ``committed`` fills in ``found``.
        """
        if self.found is not None:
            new = self.found == NEW
            column = np.full(len(new), -1)
            column[new] = stored
            stored = column
        return np.concatenate([np.full(self.known, -1), stored]) if self.known else stored

    def refused(self, error: EscapementError) -> None:
        """Report that the batch is not stored and will not be."""
        digests = self.new_digests
        if self.keys is not None and digests is not None:
            self.keys.release(digests)
        if self.producer is not None:
            self.producer.refused(self.sequence + self.known)
        self.failed(error)
