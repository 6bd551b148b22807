"""Staging of one attempt at one part of a bulk job: from messages to inbox entries.

To *stage* messages is to store them in the database without making them visible yet. A *target* is
the full name of a topic. An *inbox entry* is a batch of messages for one target. Messages are
gathered by target until they fill an inbox entry, and entries are gathered until they fill a
transaction. A thread writes one transaction while the next is gathered. Repeating a transaction
does no harm (storage/inbox/job.py), so it is retried while the database cannot be reached. The
memory is bounded by ``BUFFER_BYTES``, one batch, and two transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from escapement.message import NO_TIME, NO_TIMES, Int64s, MessageBatch, Times, cuts
from escapement.pipeline.sink.transactions import Transactions
from escapement.storage.catalog.delay_policy import DelayPolicy
from escapement.storage.engine.base import Connection
from escapement.storage.inbox import job
from escapement.storage.inbox.entry import (
    MAX_ENTRY_BYTES,
    MAX_ENTRY_MESSAGES,
    InboxEntry,
    compressed,
)
from escapement.storage.inbox.job import Attempt, Counted, Tally

# The target size of an inbox entry. The broker moves an entry into the topic's log in one commit.
# Larger entries delay other publishers. Smaller ones have a higher commit cost per message.
ENTRY_BYTES: Final = 2 << 20
# The least size of a transaction, except the last one of an attempt. Transactions are large because
# each COMMIT costs an fsync.
TRANSACTION_BYTES: Final = 4 << 20
# The maximum size of messages gathered for all targets. Above it, all of them are put into inbox
# entries, even if these are not full.
BUFFER_BYTES: Final = 16 << 20
# The size of a message beside its payload, key and properties: time, priority and lengths.
_ROW_BYTES: Final = 24
# The maximum size of payload, key and properties together, which fits an inbox entry.
MAX_MESSAGE_BYTES: Final = MAX_ENTRY_BYTES - 64


class Admitted(NamedTuple):
    """A topic that takes messages: its full name, and its delay policy if it has one."""

    target: str
    delays: DelayPolicy | None


@dataclass(slots=True)
class _Gathered:
    """The gathered messages of one target that are not in an inbox entry yet."""

    batches: list[MessageBatch] = field(default_factory=list)
    at_ms: list[Int64s] = field(default_factory=list)
    size_bytes: int = 0
    count: int = 0


class Stager:
    """Stages the messages of one attempt. Blocking; for one thread.

    Call ``finish`` at the end, or ``close`` to end without staging the rest.

    Args:
      admit: called for each topic before its first messages are gathered, with the name of the
        topic and whether the messages have times. Returns the topic, or raises an error if it does
        not take the messages.
      start_ms: the time from which delays count, in Unix milliseconds.
    """

    def __init__(
        self,
        transactions: Transactions,
        attempt: Attempt,
        admit: Callable[[str, bool], Admitted],
        start_ms: int,
    ) -> None:
        self._transactions = transactions
        self._attempt = attempt
        self._admit = admit
        self._start_ms = start_ms
        self._admitted: dict[tuple[str, bool], Admitted] = {}
        self._gathered: dict[str, _Gathered] = {}
        self._gathered_bytes = 0
        self._entries: list[InboxEntry] = []
        self._entry_bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        # The totals of each target, including entries that are not written yet.
        self.tallies: dict[str, Tally] = {}

    def add(
        self,
        topic: str,
        batch: MessageBatch,
        at_ms: Int64s | None,
        name: Callable[[int], str] | None = None,
    ) -> None:
        """Stage messages for a topic. None may be larger than ``MAX_MESSAGE_BYTES``.

        Args:
          topic: the name of the topic, in full or without the default tenant and namespace.
          at_ms: due times; ``NO_TIME`` for a message due at once. None if all are due at once.
          name: returns the name of a message of the batch, for error messages.

        Raises:
          DelayTooShort, DelayTooLong: the delay policy of the topic refuses a message.
        """
        timed = at_ms is not None and bool((at_ms != NO_TIME).any())
        admitted = self._admitted.get((topic, timed))
        if admitted is None:
            self._await_written()  # ``admit`` uses the connection of the writing thread
            admitted = self._admitted[topic, timed] = self._admit(topic, timed)
        target, delays = admitted
        if delays is not None:
            count, sent_ms = len(batch), at_ms
            at_ms = delays.filled_at(sent_ms, count, self._start_ms)
            delays.check(Times(at_ms=at_ms), count, self._start_ms, Times(at_ms=sent_ms), name)
        gathered = self._gather(
            target, batch, np.full(len(batch), NO_TIME) if at_ms is None else at_ms
        )
        if gathered.size_bytes >= ENTRY_BYTES or gathered.count >= MAX_ENTRY_MESSAGES:
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
        """Stage the rest of the messages. Return the attempt with its count, for the commit."""
        self._close_all()
        self._write()
        self._await_written()
        self.close()
        messages = sum(tally.messages for tally in self.tallies.values())
        return Counted(self._attempt.part, self._attempt.name, messages)

    def close(self) -> None:
        """Wait for the writing thread to end, and ignore its errors."""
        self._thread.shutdown()

    def _close_all(self) -> None:
        for target in list(self._gathered):
            self._close(target, whole=True)

    def _close(self, target: str, *, whole: bool) -> None:
        """Put the gathered messages of a target into inbox entries.

        Args:
          whole: whether to put all messages into entries. If false, messages that would not fill an
            entry stay gathered.
        """
        gathered = self._gathered.pop(target)
        self._gathered_bytes -= gathered.size_bytes
        batch = MessageBatch.concat(gathered.batches)
        at_ms = np.concatenate(gathered.at_ms)
        sizes = batch.string_sizes() + _ROW_BYTES
        ranges = list(cuts(sizes, ENTRY_BYTES, MAX_ENTRY_MESSAGES))
        low, high = ranges[-1]
        rest = batch.part(low, high)
        if not whole and high - low < MAX_ENTRY_MESSAGES and rest.size_bytes < ENTRY_BYTES:
            ranges.pop()
            # A copy, because a view would keep the whole batch in memory.
            self._gather(target, MessageBatch.decode(rest.encode()), at_ms[low:high].copy())
        for low, high in ranges:
            self._put(target, batch.part(low, high), at_ms[low:high])

    def _put(self, target: str, batch: MessageBatch, at_ms: Int64s) -> None:
        tally = self.tallies.get(target, Tally(0, 0, 0))
        times = Times(at_ms=at_ms) if bool((at_ms != NO_TIME).any()) else NO_TIMES
        body = batch.encode()
        small = compressed(body)
        inflated_bytes = 0 if small is None else len(body)
        inbox_entry = InboxEntry(
            target, f"{tally.inbox_entries}", small or body, len(batch), times, inflated_bytes
        )
        self.tallies[target] = Tally(
            tally.inbox_entries + 1,
            tally.messages + inbox_entry.count,
            tally.size_bytes + inbox_entry.size_bytes,
        )
        self._entries.append(inbox_entry)
        self._entry_bytes += inbox_entry.size_bytes
        if self._entry_bytes >= TRANSACTION_BYTES:
            self._write()

    def _write(self) -> None:
        """Start a transaction for the inbox entries, when the previous transaction has ended."""
        inbox_entries, self._entries = self._entries, []
        self._entry_bytes = 0
        if not inbox_entries:
            return
        self._await_written()
        tallies = dict(self.tallies)

        def stage(connection: Connection) -> None:
            job.stage(self._transactions.engine, connection, self._attempt, inbox_entries, tallies)

        self._writing = self._thread.submit(self._transactions.run, stage)

    def _await_written(self) -> None:
        """Wait for the transaction in the thread, and raise its error if it failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()
