"""The items of a group commit, as they are submitted to the commit pipeline.

Each item names its topic and its size, and most have a callback for failure. Groups are
formed in :mod:`~escapement.storage.commit.group`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from escapement.dedup import Digests
from escapement.errors import EscapementError
from escapement.group_names import Member
from escapement.message import NO_TIMES, Buffer, Int64s, Times
from escapement.storage.encoding.dedup_keys import KEY_BYTES
from escapement.storage.encoding.lag import Timing
from escapement.storage.engine.base import Connection
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.staged_batch import Advance


def _ignore(error: EscapementError) -> None:
    """Ignore the failure of an append that has no waiter."""


@dataclass(slots=True, eq=False)
class Append:
    """A batch for the log. ``fail`` is called once if the batch will not become durable.

    ``entry_ids`` are the inbox entries that the batch was read from. The same transaction
    deletes them. For inbox entries of bulk jobs, ``advances`` gives the new progress of their
    staged batches instead. ``digests`` are the messages' dedup keys, V16[count]. ``members``
    maps rows of the batch to event groups.

    If all messages of a batch are stored already, the batch has no messages and no body. It
    records its producer's progress, and is confirmed after all items submitted before it.
    """

    topic_id: int
    body: Buffer
    count: int
    times: Times = NO_TIMES
    producer_id: int = 0  # 0: a producer without a name
    last_sequence: int = -1
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    entry_ids: Sequence[int] = ()
    advances: Sequence[Advance] = ()
    digests: Digests | None = None
    members: Sequence[Member] = ()

    @property
    def size_bytes(self) -> int:
        keys = 0 if self.digests is None else KEY_BYTES * self.count
        return len(self.body) + 8 * self.count + keys


@dataclass(slots=True, eq=False)
class Restate:
    """Earlier messages with new times, or with unchanged times if ``times`` is None.

    ``fail`` is called once if the restatement will not become durable. ``base_offset`` is the
    negative key of its row, never used before. ``offsets`` ascend.
    """

    topic_id: int
    base_offset: int
    offsets: Int64s
    body: Buffer
    times: Times | None
    stale_ms: Int64s  # the previous due times
    first_ms: Int64s  # the due times in the row that first stored the messages
    published_ms: Int64s  # when that row was accepted
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    earliest_ms: Int64s | int = 0  # lower bound of the new due times

    @property
    def size_bytes(self) -> int:
        return len(self.body) + 40 * len(self.offsets)


@dataclass(slots=True, eq=False)
class Acks:
    """Offsets that a subscription acknowledged. They stay queued until they are durable.

    ``inbox_entries`` are inbox entries that the acknowledgement causes (a dead letter, a
    follow-up). They become durable with it. If ``subscription_id`` is the negative id of the
    topic, the offsets are cancelled messages. ``timing`` covers acknowledgements of consumers
    only. ``lapsed`` are those of the offsets that expired or were dropped before delivery.
    """

    topic_id: int
    subscription_id: int
    offsets: Int64s
    context: Any = None
    inbox_entries: Sequence[InboxEntry] = ()
    timing: Timing | None = None
    lapsed: Int64s | None = None

    @property
    def size_bytes(self) -> int:
        lapsed = 0 if self.lapsed is None else len(self.lapsed)
        return 8 * (len(self.offsets) + lapsed) + self.entry_bytes

    @property
    def entry_bytes(self) -> int:
        return sum(inbox_entry.size_bytes for inbox_entry in self.inbox_entries)


@dataclass(slots=True, eq=False)
class Attempts:
    """Attempts counted for messages of a subscription. They stay queued until durable."""

    topic_id: int
    subscription_id: int
    offsets: Int64s
    attempts: Int64s
    next_ms: Int64s
    due_ms: Int64s

    @property
    def size_bytes(self) -> int:
        return 40 * len(self.offsets)


@dataclass(slots=True, eq=False)
class Statement:
    """A function to run in the group's transaction. It may run more than once."""

    topic_id: int
    run: Callable[[Connection], Any]
    settle: Callable[[], None]
    fail: Callable[[EscapementError], None]
    value: Any = None
    error: Exception | None = None
    size_bytes: int = 0
    forgets: str = ""  # an event group of the topic that the statement deletes


# Items that fail if the database accepts no writes. The others stay queued.
Refusable = Append | Restate | Statement
Item = Refusable | Acks | Attempts
