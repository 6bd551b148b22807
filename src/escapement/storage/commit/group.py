"""A group commit, and how a lane forms it from the submitted items.

A *group commit*, or group, is one transaction for many items (storage/commit/items.py). Forming a
group assigns the offsets of new messages and fixes their due times. The items of a lane keep the
order in which they were submitted. All appends of one topic in a group become one row of the log,
or several if the row would be too large (:mod:`~escapement.storage.commit.group_rows`).

Pure code: it does no I/O and reads no clock. It loops over batches, never over messages.
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
from escapement.storage.catalog.producers import NewProducer
from escapement.storage.commit.items import (
    Acks,
    Append,
    Attempts,
    Item,
    KeyedMessages,
    Refusable,
    Replaced,
    Replacing,
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
    """The appends of one topic in a group commit.

    Their messages have consecutive offsets, beginning with ``base_offset``, and the due times
    ``due_ms``.
    """

    topic_id: int
    base_offset: int
    due_ms: Int64s
    appends: list[Append]
    base_offsets: list[int]  # offset of the first message of each append
    size_bytes: int  # of all appends
    has_members: bool  # whether a new message belongs to an event group
    has_digests: bool  # whether an append has digests of dedup keys
    replaced: Replaced | None = None  # what happens to its messages with replace keys
    # By message, the offset of the one that it replaces or gives way to, -1 if none; None: as -1.
    previous: Int64s | None = None

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.due_ms)

    def previous_of(self, append: Append, base_offset: int) -> Int64s | None:
        """Return ``previous`` of an append's messages, or None if they have no replace keys.

        Args:
          base_offset: the offset of its first message.
        """
        if self.previous is None or append.replacing is None:
            return None
        first = base_offset - self.base_offset
        return self.previous[first : first + append.count]

    def members(self) -> list[Member]:
        """Return, for each event group, the offsets of the new messages that belong to it."""
        if not self.has_members:
            return []
        found: dict[str, list[Int64s]] = {}
        for append, base in zip(self.appends, self.base_offsets, strict=True):
            for group, rows in append.members:
                found.setdefault(group, []).append(base + rows)
        return [Member(group, np.concatenate(parts)) for group, parts in found.items()]

    def keys(self, accepted_at_ms: int) -> KeyTable | None:
        """Return the dedup keys of the new messages, or None if no message has one."""
        if not self.has_digests:
            return None
        found = [
            (append.digests, base)
            for append, base in zip(self.appends, self.base_offsets, strict=True)
            if append.digests is not None
        ]
        digests = np.concatenate([column for column, _ in found])
        offsets = np.concatenate([np.arange(base, base + len(column)) for column, base in found])
        keyed = digests != _NO_DIGEST
        count = int(keyed.sum())
        if not count:
            return None
        return KeyTable(digests[keyed], offsets[keyed], np.full(count, accepted_at_ms))


@dataclass(slots=True, eq=False)
class Restated:
    """A restatement of earlier messages in a group, and the due times that it gives to them."""

    item: Restate
    due_ms: Int64s


class Moved(NamedTuple):
    """The messages of one topic that the restatements of a group state again.

    Columns of int64 with an element for each message.
    """

    offsets: Int64s  # distinct, in any order
    due_ms: Int64s
    stale_ms: Int64s  # the previous due times
    bases: Int64s  # the key of the restatement's log row

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
    """One group commit. The pipeline passes it to ``on_commit`` when it is durable."""

    lane: int
    position: JournalPosition
    accepted_at_ms: int
    generation: Generation
    topics: list[TopicGroup] = field(default_factory=list)
    restated: list[Restated] = field(default_factory=list)
    acks: list[Acks] = field(default_factory=list)
    attempts: list[Attempts] = field(default_factory=list)
    inbox_entries: list[InboxEntry] = field(default_factory=list)  # those of ``acks``
    statements: list[Statement] = field(default_factory=list)
    new_producers: list[NewProducer] = field(default_factory=list)  # those of the appends
    # Ids of the inbox entries that move into the log with this group.
    entry_ids: list[int] = field(default_factory=list)
    # The progress of staged batches whose entries move into the log with this group, one for each.
    advances: list[Advance] = field(default_factory=list)
    body_bytes: int = 0  # memory of the appends, restatements and new inbox entries of the group
    ack_count: int = 0
    log_bytes: int = 0  # size of the group's log rows; set by ``encode_group``
    lags: list[Lag] = field(default_factory=list)  # lag of ``acks``; set by ``encode_group``

    @property
    def seq(self) -> int:
        return self.position.seq

    @property
    def log_items(self) -> list[Append | Restate]:
        """The appends and restatements of the group, which write rows of the log."""
        appends: list[Append | Restate] = [a for topic in self.topics for a in topic.appends]
        return appends + [restated.item for restated in self.restated]

    @property
    def refusable(self) -> list[Refusable]:
        """The items of the group that fail if it is not written. The other items stay queued."""
        return [*self.log_items, *self.statements]

    @property
    def prepares(self) -> bool:
        """Whether the transaction has something to do before it inserts the log rows."""
        return bool(self.statements or self.entry_ids or self.inbox_entries)

    @property
    def can_share(self) -> bool:
        """Whether groups of other bundles may be written in the same transaction."""
        return not (self.prepares or self.advances)

    def undo(self) -> None:
        """Undo what was decided when the group was formed: it is certainly not stored."""
        for topic in self.topics:
            if topic.replaced is not None:
                topic.replaced.undo()

    @property
    def items(self) -> Iterator[Item]:
        """All items of the group."""
        return chain(self.refusable, self.acks, self.attempts)


def form_group(
    items: list[Item],
    lane: int,
    seq: int,
    accepted_at_ms: int,
    generation: Generation,
    next_offsets: dict[int, int],
) -> Group:
    """Form a group from items, and assign the offsets of its new messages.

    Args:
      items: in the order in which they were submitted.
      lane: the number of the lane.
      seq: the number of the group in its lane's journal.
      accepted_at_ms: the time from which delays count.
      generation: the generation of the log to write to.
      next_offsets: by topic id, the next free offset. It is moved past the new messages.

    Complexity: O(items + messages), the messages in numpy.
    """
    position = JournalPosition(seq, secrets.token_bytes(8))
    group = Group(lane, position, accepted_at_ms, generation)
    by_topic: dict[int, list[Append]] = {}
    advances: list[Advance] = []
    for item in items:
        if isinstance(item, Append):
            if (appends := by_topic.get(item.topic_id)) is None:
                by_topic[item.topic_id] = [item]
            else:
                appends.append(item)
            group.body_bytes += item.waiting_bytes
            if item.opens is not None:
                group.new_producers.append(item.opens)
            if item.entry_ids:
                group.entry_ids += item.entry_ids
            if item.advances:
                advances += item.advances
        elif isinstance(item, Restate):
            group.body_bytes += item.waiting_bytes
            due_ms = item.stale_ms
            if item.times is not None:
                due_ms = item.times.resolve(accepted_at_ms, len(item.offsets))
                due_ms = np.maximum(due_ms, item.earliest_ms)
            group.restated.append(Restated(item, due_ms))
        elif isinstance(item, Acks):
            group.acks.append(item)
            group.ack_count += item.count
            if item.inbox_entries:
                group.inbox_entries += item.inbox_entries
                group.body_bytes += item.entry_bytes
        elif isinstance(item, Attempts):
            group.attempts.append(item)
        else:
            group.statements.append(item)
    group.advances = joined(advances)
    for topic_id, appends in by_topic.items():
        base = next_offsets[topic_id]
        topic = _form_topic(topic_id, base, appends, accepted_at_ms)
        next_offsets[topic_id] = topic.end_offset
        group.topics.append(topic)
    return group


def _form_topic(topic_id: int, base: int, appends: list[Append], accepted_at_ms: int) -> TopicGroup:
    due = []
    bases = []
    keyed: list[tuple[Replacing, int]] = []
    at = base
    untimed = size_bytes = 0
    has_members = has_digests = False
    for append in appends:
        bases.append(at)
        if append.replacing is not None:
            keyed.append((append.replacing, at))
        at += append.count
        size_bytes += append.size_bytes
        if append.members:
            has_members = True
        if append.digests is not None:
            has_digests = True
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
    topic = TopicGroup(topic_id, base, due_ms, appends, bases, size_bytes, has_members, has_digests)
    if keyed:
        _replace(topic, keyed, accepted_at_ms)
    return topic


def _replace(topic: TopicGroup, keyed: list[tuple[Replacing, int]], accepted_at_ms: int) -> None:
    """Decide what happens to the messages of a topic that have replace keys.

    Args:
      keyed: the replace keys of each append that has some, and the offset of its first message.
    """
    offsets = [np.arange(base, base + len(one.digests)) for one, base in keyed]
    digests = np.concatenate([one.digests for one, _ in keyed])
    there = digests != _NO_DIGEST
    rows = np.concatenate(offsets)[there] - topic.base_offset
    if not len(rows):
        return
    messages = KeyedMessages(
        rows + topic.base_offset,
        topic.due_ms[rows],
        digests[there],
        np.concatenate([one.modes for one, _ in keyed])[there],
        np.concatenate([one.traits for one, _ in keyed])[there],
    )
    replaced = keyed[0][0].decide(messages, accepted_at_ms)
    topic.due_ms[rows] = replaced.due_ms
    topic.previous = np.full(len(topic.due_ms), -1)
    topic.previous[rows] = replaced.previous
    topic.replaced = replaced
