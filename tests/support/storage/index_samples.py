"""Messages for tests of the delayed index, computed from topic and offset; its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from escapement.message import DEFAULT_PRIORITY, Blobs, Bools, Int64s, MessageBatch
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, IndexLimits, Lineage
from escapement.storage.index.keys import MAX_DUE_MS
from escapement.storage.index.segments.manifest import Position
from escapement.traits import traits_of

Row = tuple[bytes, bytes, bytes, int]  # payload, key, properties, priority
Content = dict[tuple[int, int, int], Row]  # topic, due_ms, offset
SMALL_BLOCKS = IndexLimits(block_rows=8)


def row_of(topic: int, offset: int) -> Row:
    """Return the fields of a message. They are the same at every call."""
    payload = b"%d/%d" % (topic, offset) if topic == 1 else b"x" * (offset % 7) + b"%d" % offset
    return (
        payload,
        b"key%d" % offset if offset % 4 == offset // 20 % 2 == 0 else b"",
        b"\x80" * (offset % 11 == 0),
        offset % 100 if offset % 9 == 0 else DEFAULT_PRIORITY,
    )


def batch_of(topic: int, offsets: list[int]) -> MessageBatch:
    rows = [row_of(topic, offset) for offset in offsets]
    payloads, keys, properties, priorities = zip(*rows, strict=True)
    return MessageBatch(
        Blobs.of(payloads),
        Blobs.of(keys) if any(keys) else None,
        Blobs.of(properties) if any(properties) else None,
        np.array(priorities, np.uint8) if set(priorities) != {DEFAULT_PRIORITY} else None,
    )


def rows_of(batch: MessageBatch) -> list[Row]:
    empty = [b""] * len(batch)
    return list(
        zip(
            batch.payloads.to_list(),
            batch.keys.to_list() if batch.keys else empty,
            batch.properties.to_list() if batch.properties else empty,
            batch.priorities.tolist()
            if batch.priorities is not None
            else [DEFAULT_PRIORITY] * len(batch),
            strict=True,
        )
    )


def write_checkpoint(
    index: DelayedIndex,
    positions: Mapping[int, Position],
    mask: Callable[[int, Int64s, Int64s], Bools | None] = lambda topic, due_ms, offsets: None,
    due_soon_ms: int = -1,
    far_ms: int = MAX_DUE_MS,
) -> None:
    """Do all steps of a checkpoint of the log ``log`` at once."""
    checkpoint = index.begin_checkpoint(due_soon_ms, far_ms)
    try:
        for group in checkpoint.groups():
            checkpoint.write(group, [mask(*part) for part in group.parts()])
        checkpoint.finish("log", positions, Lineage())
    except BaseException:
        index.abandon(checkpoint)
        raise
    index.install(checkpoint)


def add_range(index: DelayedIndex, topic: int, first: int, count: int, due_ms: int) -> None:
    """Add messages that are all due at the same time."""
    offsets = list(range(first, first + count))
    index.add(topic, first, np.full(count, due_ms, np.int64), batch_of(topic, offsets))


def fill(index: DelayedIndex, first: int, count: int) -> None:
    """Add messages of topics 1 and 2 that are due at random times."""
    for topic in (1, 2):
        offsets = list(range(first, first + count))
        due_ms = np.random.default_rng(first + topic).integers(0, 20, count)
        index.add(topic, first, due_ms, batch_of(topic, offsets))


def content(index: DelayedIndex) -> Content:
    """Return the whole content of the index, read by plans and fetches."""
    found: Content = {}
    for topic in sorted(index.topics()):
        at = KEY_MIN
        while at < KEY_MAX:
            plan = index.plan(topic, at, KEY_MAX, 30)
            due_ms, offsets, traits = plan.read_traits()
            batch = index.fetch(topic, due_ms, offsets).read()
            keys = zip([topic] * len(offsets), due_ms.tolist(), offsets.tolist(), strict=True)
            rows = dict(zip(keys, rows_of(batch), strict=True))
            assert len(rows) == len(offsets), "a plan has a message twice"
            assert not rows.keys() & found.keys(), "two plans have the same message"
            found |= rows
            expected, no_traits = traits_of(batch), np.zeros(len(batch), np.uint32)
            assert np.array_equal(
                no_traits if traits is None else traits, no_traits if expected is None else expected
            )
            at = plan.stop
    return found
