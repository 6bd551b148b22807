"""Sorted runs of a memory table, compared with sorted lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.message import Blobs, MessageBatch
from escapement.storage.index.columns import FixedColumns
from escapement.storage.index.keys import KEY_MAX, KEY_MIN, MAX_DUE_MS, Key
from escapement.storage.index.sorted_run import ROW_BITS, SortedRun

DUE_MS = st.sampled_from([0, 1, 2, 3, MAX_DUE_MS - 1, MAX_DUE_MS])
# The due time of the message at each offset. A run has some of the rows of its table.
TABLES = st.dictionaries(st.integers(0, 20), st.tuples(DUE_MS, st.booleans()), max_size=12)
KEYS = st.one_of(
    st.sampled_from([KEY_MIN, KEY_MAX]),
    st.builds(Key, st.one_of(DUE_MS, st.just(MAX_DUE_MS + 1)), st.integers(0, 21)),
)


@given(TABLES, KEYS, KEYS, KEYS, st.integers(0, 12), st.integers(1, 4))
def test_run_has_its_keys_in_order(
    table: dict[int, tuple[int, bool]],
    start: Key,
    until: Key,
    stop: Key,
    wanted: int,
    stride: int,
) -> None:
    """Invariant 4: a scan between any two keys finds exactly the messages between them."""
    offsets = sorted(table)
    rows = [row for row, offset in enumerate(offsets) if table[offset][1]]
    packed = np.array(sorted(table[offsets[row]][0] << ROW_BITS | row for row in rows), np.int64)
    traits = np.array(offsets, np.uint32) * 3
    run = SortedRun(packed, np.array(offsets, np.int64), traits)
    everything = sorted(Key(table[offsets[row]][0], offsets[row]) for row in rows)

    assert run.position(start) == sum(key < start for key in everything)
    coming = [key for key in everything if key >= start]
    assert run.next_due_ms(start) == (coming[0].due_ms if coming else None)

    columns = FixedColumns.of(MessageBatch(Blobs.of([b"%d" % offset for offset in offsets])))
    inside = [key for key in coming if key < until]
    span = run.between(start, until, columns)
    if span is None:
        assert inside == []
        return
    assert span.count == len(inside) > 0
    read = [key for key in inside if key < stop]
    ((due_ms, found),) = span.keys(stop)
    assert list(zip(due_ms.tolist(), found.tolist(), strict=True)) == read
    (of_read,) = span.traits(stop)
    assert of_read is not None
    assert of_read.tolist() == [3 * key.offset for key in read]
    (source,) = span.sources(stop)
    assert [offsets[row] for row in source.rows.tolist()] == [key.offset for key in read]

    marks = span.landmarks(wanted, stride)
    sections = [inside[low : low + stride] for low in range(0, min(wanted, len(inside)), stride)]
    ends = [section[0] for section in sections] + [section[-1] for section in sections]
    assert list(zip(marks.due_ms.tolist(), marks.offsets.tolist(), strict=True)) == ends
    assert marks.is_last.tolist() == [False] * len(sections) + [True] * len(sections)
    assert marks.weights.sum() == sum(map(len, sections))
