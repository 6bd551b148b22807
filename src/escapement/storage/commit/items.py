"""The items that are submitted to the commit pipeline.

An *item* is something to make durable: published messages (:class:`Append`), rescheduled or
relocated ones (:class:`Restate`), acknowledgements (:class:`Acks`), counted attempts
(:class:`Attempts`), or SQL statements (:class:`Statement`). Each item names its topic and its size.
The items that wait together become one *group commit*, a transaction that
:mod:`~escapement.storage.commit.group` forms.

Appends, restatements and statements fail while the database accepts no writes: the pipeline refuses
new ones, and calls ``fail`` of those in its queues. Acknowledgements and attempts stay queued until
they are durable. The field ``context`` is for the submitter, who finds it in the group after the
commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from escapement.dedup import Digests
from escapement.errors import EscapementError
from escapement.group_names import Member
from escapement.message import NO_TIMES, Buffer, Int64s, Times
from escapement.storage.catalog.producers import NewProducer
from escapement.storage.encoding.dedup_keys import KEY_BYTES
from escapement.storage.encoding.lag import Timing
from escapement.storage.encoding.replace_keys import REPLACE_KEY_BYTES, ReplaceTable
from escapement.storage.engine.base import Connection
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.staged_batch import Advance

# The memory of a published batch that waits for commit, besides its body and columns: its item, its
# request, and the closures that answer it. Measured with batches of one message of one byte.
ITEM_BYTES: Final = 1024


def _ignore(error: EscapementError) -> None:
    """Ignore a failure. This is the ``fail`` of items whose submitter does not set one."""


class KeyedMessages(NamedTuple):
    """New messages with replace keys, in the order of their offsets; columns of equal length.

    ``modes`` says how each message meets a pending one (``escapement.replacement``).
    """

    offsets: Int64s
    due_ms: Int64s
    digests: Digests
    modes: Int64s
    traits: Int64s


class Replaced(NamedTuple):
    """The decision about messages with replace keys, made when their group is formed.

    ``due_ms`` and ``previous`` have an element for each message: its due time, and the offset of
    the message that it replaces or gives way to, -1 if none. ``cancelled`` are the offsets of all
    messages, new and earlier ones, that are cancelled in the same transaction. ``keys`` are the
    entries to remember. ``undo`` is called if the transaction certainly does not become durable.
    """

    due_ms: Int64s
    previous: Int64s
    cancelled: Int64s
    keys: ReplaceTable
    undo: Callable[[], None]


@dataclass(slots=True, eq=False)
class Replacing:
    """The replace keys of a batch.

    The columns have a row for each message; the digest is zero for a message without a key.
    ``decide`` takes the messages with keys of a topic in a group, and the time at which the broker
    accepts them. It is called when the group is formed, when no other group of the topic is under
    way.
    """

    digests: Digests
    modes: Int64s
    traits: Int64s
    decide: Callable[[KeyedMessages, int], Replaced]


@dataclass(slots=True, eq=False)
class Append:
    """A batch of messages to append to the log of a topic.

    ``body`` is the encoded batch. ``fail`` is called once if the batch will not become durable.
    ``entry_ids`` are the ids of the inbox entries that the batch was read from. The same
    transaction deletes them. For inbox entries of bulk jobs, ``advances`` is the new progress of
    their staged batches instead. ``digests`` are the digests of the messages' dedup keys,
    V16[count]. ``members`` are the rows of the batch that belong to event groups. ``opens`` is the
    producer of the batch if this append must store it. ``replacing`` has the replace keys of the
    messages; None if they have none.

    If all messages of a published batch are stored already, ``count`` is 0 and ``body`` is empty.
    Such an append records the progress of its producer. It is confirmed after all items submitted
    before it, because these may include the first copies of its messages.
    """

    topic_id: int
    body: Buffer
    count: int
    times: Times = NO_TIMES
    producer_id: int = 0  # id of the named producer; 0: the producer has no name
    last_sequence: int = -1
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    entry_ids: Sequence[int] = ()
    advances: Sequence[Advance] = ()
    digests: Digests | None = None
    members: Sequence[Member] = ()
    opens: NewProducer | None = None
    replacing: Replacing | None = None
    size_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        keys = 0 if self.digests is None else KEY_BYTES * self.count
        if self.replacing is not None:
            keys += REPLACE_KEY_BYTES * self.count
        self.size_bytes = len(self.body) + 8 * self.count + keys

    @property
    def waiting_bytes(self) -> int:
        """The memory that the item takes while it waits for commit."""
        return self.size_bytes + ITEM_BYTES


@dataclass(slots=True, eq=False)
class Restate:
    """A restatement: a log row that states earlier messages of a topic again.

    It gives the messages new times (they were rescheduled), or the same times if ``times`` is None
    (they are relocated to a newer part of the log). ``base_offset`` is the key of the row: a
    negative number that the topic has never used before. ``offsets`` are those of the messages,
    ascending. ``fail`` is called once if the restatement will not become durable.
    """

    topic_id: int
    base_offset: int
    offsets: Int64s
    body: Buffer
    times: Times | None
    stale_ms: Int64s  # the previous due times
    first_ms: Int64s  # the due times in the row that stated the messages first
    published_ms: Int64s  # the publish times: when that first row was accepted
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    earliest_ms: Int64s | int = 0  # lower bound of the new due times; earlier ones are raised to it

    @property
    def size_bytes(self) -> int:
        return len(self.body) + 40 * len(self.offsets)

    @property
    def waiting_bytes(self) -> int:
        """The memory that the item takes while it waits for commit."""
        return self.size_bytes + ITEM_BYTES


@dataclass(slots=True, eq=False)
class Acks:
    """Offsets of messages that a subscription acknowledged, or of cancelled messages.

    For cancelled messages, ``subscription_id`` is the negative id of the topic. ``done`` is called
    with the number of offsets when they are durable. ``inbox_entries`` are inbox entries that the
    acknowledgements cause, such as dead letters. They become durable in the same transaction.
    ``timing`` has the delivery times of messages that consumers acknowledged, from which the lag is
    counted. ``lapsed`` are those of ``offsets`` that expired or were dropped before any delivery.
    """

    topic_id: int
    subscription_id: int
    offsets: Int64s
    done: Callable[[int], None] | None = None
    inbox_entries: Sequence[InboxEntry] = ()
    timing: Timing | None = None
    lapsed: Int64s | None = None

    @property
    def size_bytes(self) -> int:
        lapsed = 0 if self.lapsed is None else len(self.lapsed)
        return 8 * (len(self.offsets) + lapsed) + self.entry_bytes

    @property
    def count(self) -> int:
        """The number of offsets, but at least one: the item itself takes memory while it waits."""
        return max(len(self.offsets), 1)

    @property
    def entry_bytes(self) -> int:
        return sum(inbox_entry.size_bytes for inbox_entry in self.inbox_entries)


@dataclass(slots=True, eq=False)
class Attempts:
    """Delivery attempts of messages that a subscription has not acknowledged.

    The columns have the offset of each message, its number of deliveries with flags, the time of
    its next attempt, and its due time.
    """

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
    """A function that executes SQL statements in the transaction of a group commit.

    ``run`` is called in a thread, and again if the transaction is repeated. Its result is in
    ``value``. An exception that it raises is in ``error``, and rolls back only its own changes.
    ``settle`` is called after the commit, or ``fail`` if the group was not committed.
    """

    topic_id: int
    run: Callable[[Connection], Any]
    settle: Callable[[], None]
    fail: Callable[[EscapementError], None]
    value: Any = None
    error: Exception | None = None
    size_bytes: int = 0
    waiting_bytes: int = 0
    forgets: str = ""  # name of an event group that the statement deletes; "": none


# The items that fail while the database accepts no writes. The others stay queued.
Refusable = Append | Restate | Statement
Item = Refusable | Acks | Attempts
