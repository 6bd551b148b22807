"""One batch on its way to the log, with the callbacks that report its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.topic.dedup_keys import NEW, WAITING, DedupKeys
from escapement.broker.topic.producer import Producer
from escapement.dedup import Digests
from escapement.errors import EscapementError
from escapement.message import NO_TIMES, Buffer, Int64s, MessageBatch, Times, UInt8s

# Earlier than any time: keys that were stored just now are found whatever their window.
_EVER_MS: Final = -(1 << 62)


class Stored(NamedTuple):
    """The offsets of a durable batch.

    ``duplicate``: some of its messages were stored before. ``base_offset`` is the first message's
    offset, and the others follow it; -1 if they do not, or if it is not known. The columns, if
    there are any, then have for each message its offset (-1: not known), and 1 if it was stored
    before, else 0.
    """

    base_offset: int
    duplicate: bool = False
    offsets: Int64s | None = None
    repeated: UInt8s | None = None


@dataclass(slots=True, eq=False)
class Publication:
    """One batch, from its arrival to its receipt.

    Args:
      sequence: the sequence of its first message; ``after`` is that of the message before it.
      body: the encoding of ``batch``, which the log stores unchanged.
      done: called when the batch is durable.
      failed: called with the reason if the batch will not be stored.
      digests: the messages' dedup keys, V16[n].

    Messages with a known sequence leave ``batch``; only their count stays (``known``). Messages
    with a known dedup key leave ``batch`` too, but keep their row in ``found``.
    """

    sequence: int
    after: int
    batch: MessageBatch
    times: Times
    body: Buffer
    done: Callable[[Stored], None]
    failed: Callable[[EscapementError], None]
    digests: Digests | None = None
    producer: Producer | None = None
    known: int = 0  # how many of the first messages were stored before
    keys: DedupKeys | None = None  # the topic's, which hold the new keys
    found: Int64s | None = None  # see DedupKeys.sort_out; None: all are new

    @property
    def last_sequence(self) -> int:
        """The sequence of the last message."""
        count = len(self.batch) if self.found is None else len(self.found)
        return self.sequence + self.known + count - 1

    def trim(self, known: int) -> None:
        """Remove the first ``known`` messages, which are stored already."""
        if known:
            if self.digests is not None:
                self.digests = self.digests[known:]
            self._keep(np.arange(known, len(self.batch)))
            self.known = known

    def sort_out(self, keys: DedupKeys, since_ms: int) -> None:
        """Remove the messages whose dedup keys are known.

        Raises:
          Busy, LimitExceeded: if there is no room for the new keys; nothing changed.
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
        """The digests of the messages to be stored."""
        if self.digests is None or self.found is None:
            return self.digests
        new: Digests = self.digests[self.found == NEW]
        return new

    def queued(self) -> None:
        """Mark the new keys as waiting: the batch entered the commit pipeline."""
        digests = self.new_digests
        if self.keys is not None and digests is not None:
            self.keys.hold(digests)

    def _keep(self, rows: Int64s) -> None:
        self.batch = self.batch.take(rows)
        self.body = self.batch.encode() if len(rows) else b""
        if not len(rows):
            self.times = NO_TIMES
        elif self.times is not NO_TIMES:
            self.times = self.times.take(rows)

    def committed(self, base_offset: int) -> None:
        """Report that the batch is durable from ``base_offset`` on.

        All batches that entered the pipeline before it are durable too.
        """
        assert self.producer is not None
        self.producer.committed(self.last_sequence, base_offset + len(self.batch) - 1)
        if self.found is None:
            self.done(Stored(-1 if self.known else base_offset, bool(self.known)))
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
            )
        )

    def refused(self, error: EscapementError) -> None:
        """Report that the batch is not stored and will not be."""
        assert self.producer is not None
        digests = self.new_digests
        if self.keys is not None and digests is not None:
            self.keys.release(digests)
        self.producer.refused(self.sequence + self.known)
        self.failed(error)
