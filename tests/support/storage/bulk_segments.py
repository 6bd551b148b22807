"""Segments written in bulk, and their expected content."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from escapement.storage.index.merging.bulk import BulkTable
from escapement.storage.index.segments.writer import whole_segment
from support.storage.index_samples import Content, batch_of, row_of


def due_of(topic: int, offsets: range) -> np.ndarray:
    """Return due times: many are equal, and each depends only on topic and offset."""
    return np.array([offset * 7 % 5 + topic for offset in offsets], np.int64)


def filled(path: Path, table: BulkTable, named: list[tuple[int, int, int, bool]]) -> Content:
    """Add these batches and write them. Return the expected content."""
    expected: Content = {}
    for topic, first, count, by_name in named:
        offsets = range(first, first + count)
        due_ms = due_of(topic, offsets)
        table.add(
            topic, np.array(offsets) if by_name else first, due_ms, batch_of(topic, [*offsets])
        )
        for at, offset in zip(due_ms.tolist(), offsets, strict=True):
            expected[topic, at, offset] = row_of(topic, offset)
    with whole_segment(path) as writer:
        table.write(writer)
    table.clear()
    return expected
