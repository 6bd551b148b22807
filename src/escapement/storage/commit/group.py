"""A group commit, and how a lane forms it from the submitted items.

Pure: forming a group assigns offsets and fixes ``due_ms``. It does no I/O and reads no
clock. It loops over batches, never over messages.

The items of a lane keep the order in which they were submitted. All appends of one topic in
a group become one row of the log. They are split only if the row would grow too large
(:mod:`~escapement.storage.commit.group_rows`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from escapement.dedup import DIGEST, NO_DIGEST
from escapement.group_names import Member
from escapement.message import NO_TIMES, Int64s
from escapement.storage.commit.items import (
    Acks,
    Append,
    Attempts,
    Item,
    Refusable,
    Restate,
    Statement,
)
from escapement.storage.encoding.dedup_keys import KeyTable
from escapement.storage.encoding.lag import Lag
from escapement.storage.inbox.entry import InboxEntry
from escapement.storage.inbox.staged_batch import Advance, joined
from escapement.storage.journal.journal import JournalPosition
from escapement.storage.log.generation import Generation

_NO_DIGEST: Final = np.frombuffer(NO_DIGEST, DIGEST)[0]


@dataclass(slots=True, eq=False)
class TopicGroup:
    """The appends of one topic in a group: offsets ``base_offset ... + len(due_ms)``."""

    topic_id: int
    base_offset: int
    due_ms: Int64s
    appends: list[Append]
    base_offsets: list[int]  # of each append

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.due_ms)

    def members(self) -> list[Member]:
        """Return the offsets of the messages that belong to an event group, by event group."""
        found: dict[str, list[Int64s]] = {}
        for append, base in zip(self.appends, self.base_offsets, strict=True):
            for group, rows in append.members:
                found.setdefault(group, []).append(base + rows)
        return [Member(group, np.concatenate(parts)) for group, parts in found.items()]

    def keys(self, accepted_at_ms: int) -> KeyTable | None:
        """Return the dedup keys of the messages, or None if they have none."""
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
    """A restatement in a group, and the due times that it sets; int64[n]."""

    item: Restate
    due_ms: Int64s


class Moved(NamedTuple):
    """The restatements of one topic, concatenated; int64[n] each."""

    offsets: Int64s  # distinct, in no order
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
    inbox_entries: list[InboxEntry] = field(default_factory=list)  # of the acks, in their order
    statements: list[Statement] = field(default_factory=list)
    log_bytes: int = 0  # size of its rows in the log, set when they are encoded
    lags: list[Lag] = field(default_factory=list)  # lags of its acks, set when it is encoded

    @property
    def seq(self) -> int:
        return self.position.seq

    @property
    def body_bytes(self) -> int:
        """Size of its appends, restatements and inbox entries."""
        appends = sum(item.size_bytes for item in self.log_items)
        return appends + sum(inbox_entry.size_bytes for inbox_entry in self.inbox_entries)

    @property
    def log_items(self) -> list[Append | Restate]:
        """The submitted items that write rows of the log."""
        appends: list[Append | Restate] = [a for topic in self.topics for a in topic.appends]
        return appends + [restated.item for restated in self.restated]

    @property
    def refusable(self) -> list[Refusable]:
        """The submitted items that fail if the group is not written."""
        return [*self.log_items, *self.statements]

    @property
    def items(self) -> Iterator[Item]:
        """All submitted items of the group."""
        return chain(self.refusable, self.acks, self.attempts)

    @property
    def entry_ids(self) -> list[int]:
        """Ids of the inbox entries that move into the log with this group."""
        return [id for t in self.topics for append in t.appends for id in append.entry_ids]

    @property
    def advances(self) -> list[Advance]:
        """The progress of staged batches whose entries move into the log; one for each batch."""
        appends = (append for topic in self.topics for append in topic.appends)
        return joined(one for append in appends for one in append.advances)

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
    """Form the group of ``items``, and move ``next_offsets`` of its topics forward.

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
                due_ms = np.maximum(due_ms, item.earliest_ms)
            group.restated.append(Restated(item, due_ms))
        elif isinstance(item, Acks):
            group.acks.append(item)
            group.inbox_entries += item.inbox_entries
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
