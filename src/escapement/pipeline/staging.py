"""One attempt at one part of a job: messages in, letters in the database out.

Messages are gathered by target until they fill a letter, and letters until they are worth a
transaction; each of these may be done twice (storage/letters/job.py), so a database that goes
away for a while is waited for. One transaction is written in a thread while the next is gathered.
What is in memory is bounded by ``BUFFER_BYTES``, one batch, and two transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from escapement.message import NO_TIME, NO_TIMES, Int64s, MessageBatch, Times
from escapement.pipeline.transactions import Transactions
from escapement.storage.engine.base import Connection
from escapement.storage.letters import job
from escapement.storage.letters.job import Attempt, Counted, Tally
from escapement.storage.letters.letter import (
    MAX_LETTER_BYTES,
    MAX_LETTER_MESSAGES,
    Letter,
    compressed,
)

# A letter is one group commit of the broker's: larger ones make others wait, and in smaller ones
# each message bears more of what a commit costs.
LETTER_BYTES: Final = 2 << 20
# What a transaction has at least, unless it is the last: a COMMIT costs an fsync.
TRANSACTION_BYTES: Final = 4 << 20
# Messages gathered for all targets; beyond it letters go that are not full.
BUFFER_BYTES: Final = 16 << 20
# Of a message beside its columns: its time, priority, and lengths of what it has.
_ROW_BYTES: Final = 24
# The payload, key and properties of a message that fits a letter, with what is beside them.
MAX_MESSAGE_BYTES: Final = MAX_LETTER_BYTES - 64


@dataclass(slots=True)
class _Gathered:
    """Messages of one target that are in no letter yet."""

    batches: list[MessageBatch] = field(default_factory=list)
    at_ms: list[Int64s] = field(default_factory=list)
    size_bytes: int = 0
    count: int = 0


class Stager:
    """See the module's docstring. Blocking; for one thread. Whoever gives it up closes it.

    Args:
      admit: called with each target before anything is gathered for it; raises what is
        wrong with it.
    """

    def __init__(
        self, transactions: Transactions, attempt: Attempt, admit: Callable[[str, bool], str]
    ) -> None:
        self._transactions = transactions
        self._attempt = attempt
        self._admit = admit
        self._names: dict[tuple[str, bool], str] = {}
        self._gathered: dict[str, _Gathered] = {}
        self._gathered_bytes = 0
        self._letters: list[Letter] = []
        self._letter_bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self.tallies: dict[str, Tally] = {}  # of each target, what is or will be staged

    def add(self, topic: str, batch: MessageBatch, at_ms: Int64s | None) -> None:
        """Stage messages for a topic, written in any way; ``at_ms`` as in ``Times``.

        None is larger than ``MAX_MESSAGE_BYTES``.
        """
        timed = at_ms is not None and bool((at_ms != NO_TIME).any())
        target = self._names.get((topic, timed))
        if target is None:
            self._await_written()  # on one connection one thing at a time
            target = self._names[topic, timed] = self._admit(topic, timed)
        gathered = self._gather(
            target, batch, np.full(len(batch), NO_TIME) if at_ms is None else at_ms
        )
        if gathered.size_bytes >= LETTER_BYTES or gathered.count >= MAX_LETTER_MESSAGES:
            self._close(target, whole=False)
        if self._gathered_bytes >= BUFFER_BYTES:
            self._close_all()

    def _gather(self, target: str, batch: MessageBatch, at_ms: Int64s) -> _Gathered:
        gathered = self._gathered.setdefault(target, _Gathered())
        size_bytes = batch.size_bytes + 8 * len(batch)
        gathered.batches.append(batch)
        gathered.at_ms.append(at_ms)
        gathered.size_bytes += size_bytes
        gathered.count += len(batch)
        self._gathered_bytes += size_bytes
        return gathered

    def finish(self) -> Counted:
        """All that was added is staged; what the commit is to be told."""
        self._close_all()
        self._write()
        self._await_written()
        self.close()
        messages = sum(tally.messages for tally in self.tallies.values())
        return Counted(self._attempt.part, self._attempt.name, messages)

    def close(self) -> None:
        """Nothing is being written any more, whatever became of it."""
        self._thread.shutdown()

    def _close_all(self) -> None:
        for target in list(self._gathered):
            self._close(target, whole=True)

    def _close(self, target: str, *, whole: bool) -> None:
        """Put what was gathered for a target into letters: all of it, or what fills them."""
        gathered = self._gathered.pop(target)
        self._gathered_bytes -= gathered.size_bytes
        batch = MessageBatch.concat(gathered.batches)
        at_ms = np.concatenate(gathered.at_ms)
        cuts = _cuts(batch)
        low, high = cuts[-1]
        rest = batch.part(low, high)
        if not whole and high - low < MAX_LETTER_MESSAGES and rest.size_bytes < LETTER_BYTES:
            cuts.pop()
            # A copy: a view of a few would keep all the others in memory.
            self._gather(target, MessageBatch.decode(rest.encode()), at_ms[low:high].copy())
        for low, high in cuts:
            self._put(target, batch.part(low, high), at_ms[low:high])

    def _put(self, target: str, batch: MessageBatch, at_ms: Int64s) -> None:
        tally = self.tallies.get(target, Tally(0, 0, 0))
        times = Times(at_ms=at_ms) if bool((at_ms != NO_TIME).any()) else NO_TIMES
        body = batch.encode()
        small = compressed(body)
        inflated_bytes = 0 if small is None else len(body)
        letter = Letter(
            target, f"{tally.letters}", small or body, len(batch), times, inflated_bytes
        )
        self.tallies[target] = Tally(
            tally.letters + 1, tally.messages + letter.count, tally.size_bytes + letter.size_bytes
        )
        self._letters.append(letter)
        self._letter_bytes += letter.size_bytes
        if self._letter_bytes >= TRANSACTION_BYTES:
            self._write()

    def _write(self) -> None:
        """Begin to write the letters, once those before them are written."""
        letters, self._letters = self._letters, []
        self._letter_bytes = 0
        if not letters:
            return
        self._await_written()
        tallies = dict(self.tallies)

        def stage(connection: Connection) -> None:
            job.stage(self._transactions.engine, connection, self._attempt, letters, tallies)

        self._writing = self._thread.submit(self._transactions.run, stage)

    def _await_written(self) -> None:
        """Wait for what is being written. Raises what it failed with."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def sizes_of(batch: MessageBatch) -> Int64s:
    """The bytes of each message: of its payload, key and properties."""
    sizes = batch.payloads.lengths.astype(np.int64)
    for column in (batch.keys, batch.properties):
        if column is not None:
            sizes += column.lengths
    return sizes


def _cuts(batch: MessageBatch) -> list[tuple[int, int]]:
    """Where a batch is to be cut into letters: of one message, or of as many as fit."""
    sizes = sizes_of(batch) + _ROW_BYTES
    ends = np.cumsum(sizes)
    cuts: list[tuple[int, int]] = []
    low = 0
    while low < len(ends):
        begins = int(ends[low] - sizes[low])
        high = int(np.searchsorted(ends, begins + LETTER_BYTES, "right"))
        high = min(max(high, low + 1), low + MAX_LETTER_MESSAGES)
        cuts.append((low, high))
        low = high
    return cuts
