"""Encoding of a group commit as rows of the log and an entry of the journal.

A group commit (storage/commit/group.py) writes one row of the log for each of its topics, and one
journal entry with everything else. Pure code: it does no I/O.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from escapement.message import Int64s
from escapement.sorting import bounds
from escapement.storage.commit.group import Group, Restated, TopicGroup
from escapement.storage.commit.items import Append
from escapement.storage.encoding.dedup_keys import Keyed
from escapement.storage.encoding.lag import count_lags
from escapement.storage.encoding.replace_keys import Replaceable
from escapement.storage.journal.entry import (
    Acked,
    AttemptColumns,
    Grouped,
    JournalEntry,
    ProducerMark,
    cancellations_id,
    lapses_id,
)
from escapement.storage.log.log_row import Restating, encode_row
from escapement.storage.log.log_table import NewRow, RowKey

# Limit of the size of a log row, which must fit into a packet of the database, 16 MiB by default.
# Only a group with batches of several megabytes reaches this limit.
MAX_ROW_BYTES: Final = 8 << 20


def encode_group(group: Group) -> tuple[list[NewRow], JournalEntry]:
    """Return the log rows and the journal entry of a group commit.

    Also sets ``log_bytes`` and ``lags`` of the group. It copies all messages once, so run it in a
    thread.
    """
    rows = [row for topic in group.topics for row in _encode_topic(group, topic)]
    rows += [_encode_restated(group, restated) for restated in group.restated]
    group.log_bytes = sum(len(row.data) for row in rows)
    group.lags = count_lags(acks.timing for acks in group.acks if acks.timing is not None)
    keys = [
        RowKey(row.generation.id, row.topic_id, row.base_offset, row.message_count, len(row.data))
        for row in rows
    ]
    return rows, JournalEntry(
        keys,
        _acked(group),
        _attempted(group),
        _producers(group),
        _keyed(group),
        _grouped(group),
        group.lags,
        [
            Replaceable(topic.topic_id, topic.replaced.keys)
            for topic in group.topics
            if topic.replaced is not None and len(topic.replaced.keys.offsets)
        ],
    )


def _encode_topic(group: Group, topic: TopicGroup) -> list[NewRow]:
    rows = []
    base = topic.base_offset
    for appends in _sections(topic):
        bodies = [append.body for append in appends if append.count]
        count = sum([append.count for append in appends])
        if count:
            first = base - topic.base_offset
            due_ms = topic.due_ms[first : first + count]
            data = encode_row(group.accepted_at_ms, due_ms, bodies)
            rows.append(_new_row(group, topic.topic_id, base, due_ms, data))
            base += count
    return rows


def _sections(topic: TopicGroup) -> list[list[Append]]:
    """Divide the appends of a topic among rows: one append, and as many of the next ones as fit."""
    if topic.size_bytes <= MAX_ROW_BYTES:
        return [topic.appends]
    sections: list[list[Append]] = []
    size_bytes = MAX_ROW_BYTES
    for append in topic.appends:
        size_bytes += append.size_bytes
        if size_bytes > MAX_ROW_BYTES:
            sections.append([])
            size_bytes = append.size_bytes
        sections[-1].append(append)
    return sections


def _new_row(group: Group, topic_id: int, base: int, due_ms: Int64s, data: bytes) -> NewRow:
    first_ms, last_ms = bounds(due_ms)
    at_ms = group.accepted_at_ms
    return NewRow(group.generation, topic_id, base, len(due_ms), first_ms, last_ms, at_ms, data)


def _encode_restated(group: Group, restated: Restated) -> NewRow:
    item, due_ms = restated.item, restated.due_ms
    restating = Restating(item.offsets, item.stale_ms, item.first_ms, item.published_ms)
    data = encode_row(group.accepted_at_ms, due_ms, [item.body], restating)
    return _new_row(group, item.topic_id, item.base_offset, due_ms, data)


def _acked(group: Group) -> list[Acked]:
    parts: dict[int, list[Int64s]] = {}
    for acks in group.acks:
        parts.setdefault(acks.subscription_id, []).append(acks.offsets)
        if acks.lapsed is not None:
            parts.setdefault(lapses_id(acks.subscription_id), []).append(acks.lapsed)
    for topic in group.topics:
        if topic.replaced is not None and len(topic.replaced.cancelled):
            parts.setdefault(cancellations_id(topic.topic_id), []).append(topic.replaced.cancelled)
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
    """Return the progress of each named producer after this group.

    The appends of a producer are in the order of their sequences, so the last one decides.
    """
    marks: dict[int, ProducerMark] = {}
    for topic in group.topics:
        for append, base in zip(topic.appends, topic.base_offsets, strict=True):
            if append.producer_id:
                marks[append.producer_id] = ProducerMark(
                    append.producer_id, append.last_sequence, base + append.count - 1
                )
    return list(marks.values())
