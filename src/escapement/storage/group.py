"""What a group commit is made of: items handed in, and the group formed from them.

Pure: forming a group assigns offsets and fixes ``due_ms``; it does no I/O and reads no
clock. A loop over batches is meant, a loop over messages would be a mistake.

The items of a lane stay in the order they were submitted. All that one topic appends
in a group becomes one row of the log, split only where it would grow past
``MAX_ROW_BYTES``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, NO_DIGEST, Digests
from escapement.errors import EscapementError
from escapement.groupnames import Member
from escapement.message import NO_TIMES, Buffer, Int64s, Times
from escapement.storage.dedupkeys import KEY_BYTES, Keyed, KeyTable
from escapement.storage.engine.base import Connection
from escapement.storage.generation import Generation
from escapement.storage.journal import JournalPosition
from escapement.storage.journalentry import (
    Acked,
    AttemptColumns,
    Grouped,
    JournalEntry,
    ProducerMark,
)
from escapement.storage.letter import Letter
from escapement.storage.logrow import Restating, encode_row
from escapement.storage.logtable import NewRow, RowKey

# A row must fit a packet of the database (16 MiB by default) with room to spare; only a
# group with a body of several megabytes comes near.
MAX_ROW_BYTES: Final = 8 << 20
_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, DIGEST)[0]


def _ignore(error: EscapementError) -> None:
    """Nobody waits for this append."""


@dataclass(slots=True, eq=False)
class Append:
    """A batch for the log. ``fail`` is called, once, if it will not be made durable.

    ``letter_ids`` are the letters of the inbox that it was read from; they are taken out
    in the same transaction. ``digests`` are the messages' dedup keys, V16[count]; ``members``
    says which of its rows belong to which group.

    A batch of which everything is stored already has no messages and no body: it says how
    far its producer has come, and is answered behind all that was handed in before it.
    """

    topic_id: int
    body: Buffer
    count: int
    times: Times = NO_TIMES
    producer_id: int = 0  # 0: a producer without a name
    last_sequence: int = -1
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore
    letter_ids: Sequence[int] = ()
    digests: Digests | None = None
    members: Sequence[Member] = ()

    @property
    def size_bytes(self) -> int:
        keys = 0 if self.digests is None else KEY_BYTES * self.count
        return len(self.body) + 8 * self.count + keys


@dataclass(slots=True, eq=False)
class Restate:
    """Earlier messages with other times, or, without ``times``, with the same as before.

    ``fail`` is called, once, if it is not made durable.

    ``base_offset`` is the negative key of its row, never used before; ``offsets`` ascend.
    """

    topic_id: int
    base_offset: int
    offsets: Int64s
    body: Buffer
    times: Times | None
    stale_ms: Int64s  # when they were due before
    first_ms: Int64s  # when they were due by the row that first stated them
    published_ms: Int64s  # when that was accepted
    context: Any = None
    fail: Callable[[EscapementError], None] = _ignore

    @property
    def size_bytes(self) -> int:
        return len(self.body) + 40 * len(self.offsets)


@dataclass(slots=True, eq=False)
class Acks:
    """Offsets that a subscription acknowledged; stays queued until it is durable.

    ``letters`` are what the acknowledgement causes (a dead letter, a follow-up): they
    become durable with it.
    Under the negative id of its topic it says which messages were cancelled.
    """

    topic_id: int
    subscription_id: int
    offsets: Int64s
    context: Any = None
    letters: Sequence[Letter] = ()

    @property
    def size_bytes(self) -> int:
        return 8 * len(self.offsets) + self.letter_bytes

    @property
    def letter_bytes(self) -> int:
        return sum(letter.size_bytes for letter in self.letters)


@dataclass(slots=True, eq=False)
class Attempts:
    """Attempts counted for messages of a subscription; stays queued until it is durable."""

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
    """A function to be run in the group's transaction; it may have to run again."""

    topic_id: int
    run: Callable[[Connection], Any]
    settle: Callable[[], None]
    fail: Callable[[EscapementError], None]
    value: Any = None
    error: Exception | None = None
    size_bytes: int = 0
    forgets: str = ""  # a group of the topic that ends with it


Item = Append | Restate | Acks | Attempts | Statement


@dataclass(slots=True, eq=False)
class TopicGroup:
    """What one topic got in a group: offsets ``base_offset ... + len(due_ms)``."""

    topic_id: int
    base_offset: int
    due_ms: Int64s
    appends: list[Append]
    base_offsets: list[int]  # of each append

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.due_ms)

    @property
    def bodies(self) -> list[Buffer]:
        return [append.body for append in self.appends]

    def members(self) -> list[Member]:
        """The offsets of its messages by group, of those that belong to one."""
        found: dict[str, list[Int64s]] = {}
        for append, base in zip(self.appends, self.base_offsets, strict=True):
            for group, rows in append.members:
                found.setdefault(group, []).append(base + rows)
        return [Member(group, np.concatenate(parts)) for group, parts in found.items()]

    def keys(self, accepted_at_ms: int) -> KeyTable | None:
        """The dedup keys of its messages; None if there are none."""
        found = [
            (append.digests, base)
            for append, base in zip(self.appends, self.base_offsets, strict=True)
            if append.digests is not None
        ]
        if not found:
            return None
        digests = np.concatenate([column for column, _ in found])
        offsets = np.concatenate([np.arange(base, base + len(column)) for column, base in found])
        keyed = digests != _NO_DIGEST
        count = int(keyed.sum())
        if not count:
            return None
        return KeyTable(digests[keyed], offsets[keyed], np.full(count, accepted_at_ms))


@dataclass(slots=True, eq=False)
class Restated:
    """A restatement in a group, with the times that it gives; int64[n]."""

    item: Restate
    due_ms: Int64s


class Moved(NamedTuple):
    """What restatements of one topic say, one after the other; int64[n] each."""

    offsets: Int64s  # each once, in no order
    due_ms: Int64s
    stale_ms: Int64s
    bases: Int64s

    @classmethod
    def of(cls, moved: Sequence[Restated]) -> Moved:
        items = [restated.item for restated in moved]
        return cls(
            np.concatenate([item.offsets for item in items]),
            np.concatenate([restated.due_ms for restated in moved]),
            np.concatenate([item.stale_ms for item in items]),
            np.repeat([item.base_offset for item in items], [len(item.offsets) for item in items]),
        )


@dataclass(slots=True, eq=False)
class Group:
    """One group commit; ``on_commit`` receives it when it is durable."""

    lane: int
    position: JournalPosition
    accepted_at_ms: int
    generation: Generation
    topics: list[TopicGroup] = field(default_factory=list)
    restated: list[Restated] = field(default_factory=list)
    acks: list[Acks] = field(default_factory=list)
    attempts: list[Attempts] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)  # of the acks, as they came
    statements: list[Statement] = field(default_factory=list)
    log_bytes: int = 0  # what its rows take in the log, once encoded

    @property
    def seq(self) -> int:
        return self.position.seq

    @property
    def group_id(self) -> bytes:
        return self.position.group_id

    @property
    def body_bytes(self) -> int:
        """Size of its appends, restatements and letters."""
        appends = sum(item.size_bytes for item in self.log_items)
        return appends + sum(letter.size_bytes for letter in self.letters)

    @property
    def log_items(self) -> list[Append | Restate]:
        """What of it goes into the log, as it was handed in."""
        appends: list[Append | Restate] = [a for topic in self.topics for a in topic.appends]
        return appends + [restated.item for restated in self.restated]

    @property
    def letter_ids(self) -> list[int]:
        """What leaves the inbox, because it goes into the log."""
        return [id for t in self.topics for append in t.appends for id in append.letter_ids]

    @property
    def ack_count(self) -> int:
        return sum(len(acks.offsets) for acks in self.acks)


def form_group(
    items: list[Item],
    lane: int,
    seq: int,
    accepted_at_ms: int,
    generation: Generation,
    next_offsets: dict[int, int],
) -> Group:
    """The group of ``items``; moves ``next_offsets`` of its topics forward.

    Complexity: O(items + messages), the messages in numpy.
    """
    position = JournalPosition(seq, secrets.token_bytes(8))
    group = Group(lane, position, accepted_at_ms, generation)
    by_topic: dict[int, list[Append]] = {}
    for item in items:
        if isinstance(item, Append):
            by_topic.setdefault(item.topic_id, []).append(item)
        elif isinstance(item, Restate):
            due_ms = item.stale_ms
            if item.times is not None:
                due_ms = item.times.resolve(accepted_at_ms, len(item.offsets))
            group.restated.append(Restated(item, due_ms))
        elif isinstance(item, Acks):
            group.acks.append(item)
            group.letters += item.letters
        elif isinstance(item, Attempts):
            group.attempts.append(item)
        else:
            group.statements.append(item)
    for topic_id, appends in by_topic.items():
        base = next_offsets[topic_id]
        topic = _form_topic(topic_id, base, appends, accepted_at_ms)
        next_offsets[topic_id] = topic.end_offset
        group.topics.append(topic)
    return group


def _form_topic(topic_id: int, base: int, appends: list[Append], accepted_at_ms: int) -> TopicGroup:
    due = []
    bases = []
    at = base
    untimed = 0
    for append in appends:
        bases.append(at)
        at += append.count
        if append.times is NO_TIMES:
            untimed += append.count
            continue
        if untimed:
            due.append(np.full(untimed, accepted_at_ms, np.int64))
            untimed = 0
        due.append(append.times.resolve(accepted_at_ms, append.count))
    if untimed or not due:
        due.append(np.full(untimed, accepted_at_ms, np.int64))
    due_ms = due[0] if len(due) == 1 else np.concatenate(due)
    assert len(due_ms) == at - base
    return TopicGroup(topic_id, base, due_ms, appends, bases)


def encode_group(group: Group) -> tuple[list[NewRow], JournalEntry]:
    """The rows that make ``group`` durable. Copies all bodies once: for a thread."""
    rows = [row for topic in group.topics for row in _encode_topic(group, topic)]
    rows += [_encode_restated(group, restated) for restated in group.restated]
    group.log_bytes = sum(len(row.data) for row in rows)
    keys = [
        RowKey(row.generation.id, row.topic_id, row.base_offset, row.message_count, len(row.data))
        for row in rows
    ]
    return rows, JournalEntry(
        keys, _acked(group), _attempted(group), _producers(group), _keyed(group), _grouped(group)
    )


def _encode_topic(group: Group, topic: TopicGroup) -> list[NewRow]:
    appends, bases = topic.appends, topic.base_offsets
    if not all(append.count for append in appends):
        bases = [base for append, base in zip(appends, bases, strict=True) if append.count]
        appends = [append for append in appends if append.count]
    rows = []
    first = 0
    while first < len(appends):
        # Bodies of one row: at least one, and no more than fit.
        size, end = 0, first
        while end < len(appends):
            size += appends[end].size_bytes
            if end > first and size > MAX_ROW_BYTES:
                break
            end += 1
        base = bases[first]
        limit = bases[end] if end < len(appends) else topic.end_offset
        due_ms = topic.due_ms[base - topic.base_offset : limit - topic.base_offset]
        bodies = [append.body for append in appends[first:end]]
        rows.append(
            NewRow(
                group.generation,
                topic.topic_id,
                base,
                limit - base,
                int(due_ms.min()),
                int(due_ms.max()),
                group.accepted_at_ms,
                encode_row(group.accepted_at_ms, due_ms, bodies),
            )
        )
        first = end
    return rows


def _encode_restated(group: Group, restated: Restated) -> NewRow:
    item, due_ms = restated.item, restated.due_ms
    restating = Restating(item.offsets, item.stale_ms, item.first_ms, item.published_ms)
    return NewRow(
        group.generation,
        item.topic_id,
        item.base_offset,
        len(due_ms),
        int(due_ms.min()),
        int(due_ms.max()),
        group.accepted_at_ms,
        encode_row(group.accepted_at_ms, due_ms, [item.body], restating),
    )


def _acked(group: Group) -> list[Acked]:
    parts: dict[int, list[Int64s]] = {}
    for acks in group.acks:
        parts.setdefault(acks.subscription_id, []).append(acks.offsets)
    return [
        Acked(id, offsets[0] if len(offsets) == 1 else np.concatenate(offsets))
        for id, offsets in parts.items()
    ]


def _attempted(group: Group) -> AttemptColumns | None:
    if not group.attempts:
        return None
    return AttemptColumns(
        np.concatenate(
            [np.full(len(a.offsets), a.subscription_id, np.int64) for a in group.attempts]
        ),
        np.concatenate([a.offsets for a in group.attempts]),
        np.concatenate([a.attempts for a in group.attempts]),
        np.concatenate([a.next_ms for a in group.attempts]),
        np.concatenate([a.due_ms for a in group.attempts]),
    )


def _keyed(group: Group) -> list[Keyed]:
    found = [(topic.topic_id, topic.keys(group.accepted_at_ms)) for topic in group.topics]
    return [Keyed(topic_id, keys) for topic_id, keys in found if keys is not None]


def _grouped(group: Group) -> list[Grouped]:
    found = [
        Grouped(topic.topic_id, *member) for topic in group.topics for member in topic.members()
    ]
    none = np.zeros(0, np.int64)
    return found + [
        Grouped(statement.topic_id, statement.forgets, none)
        for statement in group.statements
        if statement.forgets and statement.error is None
    ]


def _producers(group: Group) -> list[ProducerMark]:
    """The last of each named producer's appends; they stand in order of their sequences."""
    marks: dict[int, ProducerMark] = {}
    for topic in group.topics:
        for append, base in zip(topic.appends, topic.base_offsets, strict=True):
            if append.producer_id:
                marks[append.producer_id] = ProducerMark(
                    append.producer_id, append.last_sequence, base + append.count - 1
                )
    return list(marks.values())
