"""The cache of log rows that were read recently."""

from __future__ import annotations

import numpy as np

from escapement.broker.log.row_cache import KEPT_BYTES, KEPT_ROWS, Kept, RowCache
from escapement.message import Blobs, MessageBatch
from escapement.storage.log.log_table import RowKey
from escapement.storage.log.published import Published

GENERATIONS = [1]


def row(topic_id: int, base: int, count: int, size: int = 100, generation: int = 1) -> Kept:
    offsets = np.arange(base, base + count)
    batch = MessageBatch(Blobs.of([b"%d" % offset for offset in offsets]))
    return Kept(
        RowKey(generation, topic_id, base, count, size),
        Published(offsets, offsets + 1000, np.full(count, 7), batch),
    )


def found(rows: RowCache, topic_id: int, *offsets: int) -> list[bytes] | None:
    published = rows.find(topic_id, np.array(offsets), GENERATIONS)
    return None if published is None else published.batch.payloads.to_list()


def test_messages_are_found_if_one_row_has_all_of_them() -> None:
    rows = RowCache()
    rows.keep([row(1, 0, 10), row(1, 10, 10), row(2, 0, 3)])
    assert found(rows, 1, 4) == [b"4"]
    assert found(rows, 1, 10, 12, 19) == [b"10", b"12", b"19"]
    assert found(rows, 1, 9, 10) is None
    assert found(rows, 1, 20) is None
    assert found(rows, 2, 2) == [b"2"]
    assert found(rows, 3, 0) is None


def test_rows_of_forgotten_generations_are_not_found() -> None:
    rows = RowCache()
    rows.keep([row(1, 0, 10, generation=0)])
    assert found(rows, 1, 4) is None


def test_most_recently_read_rows_are_kept() -> None:
    rows = RowCache()
    for base in range(KEPT_ROWS + 5):
        rows.keep([row(1, base, 1)])
    rows.keep([row(1, KEPT_ROWS, 1)])  # a row that is read again takes no further space
    assert found(rows, 1, 4) is None
    assert all(found(rows, 1, 5 + n) for n in range(KEPT_ROWS))


def test_rows_are_kept_within_a_bound_of_bytes() -> None:
    rows = RowCache()
    half = KEPT_BYTES // 2
    rows.keep([row(1, 0, 1, half), row(1, 1, 1, half)])
    assert all(found(rows, 1, offset) for offset in (0, 1))
    rows.keep([row(1, 2, 1, half)])
    assert found(rows, 1, 0) is None
    rows.keep([row(1, 3, 1, KEPT_BYTES + 1)])
    assert found(rows, 1, 3) is None
    assert all(found(rows, 1, offset) for offset in (1, 2))
