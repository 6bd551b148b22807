"""Segments written in bulk contain all messages, in whatever order they were added."""

from __future__ import annotations

import resource
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, IndexLimits
from escapement.storage.index.building import Building
from escapement.storage.index.merging.bulk import BulkTable
from escapement.storage.index.segments.direct_file import DirectFile, read_direct
from escapement.storage.index.segments.writer import whole_segment
from support.storage.index_samples import Row, batch_of, row_of, rows_of

Content = dict[tuple[int, int, int], Row]
# (topic, first offset, messages, whether the offsets are named one by one)
batches = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 60), st.integers(1, 20), st.booleans()),
    min_size=1,
    max_size=8,
)


def due_of(topic: int, offsets: range) -> np.ndarray:
    """Return due times: many are equal, and each depends only on topic and offset."""
    return np.array([offset * 7 % 5 + topic for offset in offsets], np.int64)


def content_of(directory: Path) -> Content:
    index = DelayedIndex.open(directory)
    found: Content = {}
    for topic in index.topics():
        due_ms, offsets = index.plan(topic, KEY_MIN, KEY_MAX, 10**6).read()
        rows = rows_of(index.fetch(topic, due_ms, offsets).read())
        for at, offset, row in zip(due_ms.tolist(), offsets.tolist(), rows, strict=True):
            assert (topic, at, offset) not in found
            found[topic, at, offset] = row
    return found


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


@settings(max_examples=25)  # each example writes files to disk
@given(st.lists(batches, min_size=1, max_size=3), st.sampled_from([100, 100_000]))
def test_a_bulk_table_writes_each_message_once_in_order(
    rounds: list[list[tuple[int, int, int, bool]]], size_bytes: int
) -> None:
    """P5: the table is reused, and may be too small for the batches."""
    table = BulkTable(size_bytes)
    for batches in rounds:
        with TemporaryDirectory() as directory:
            building = Building(Path(directory) / "index")
            path = building.new_segment()
            expected = filled(path, table, batches)
            building.name("log", {}, [path], None)
            building.take_place()
            assert content_of(Path(directory) / "index") == expected


def test_a_bulk_table_has_room_up_to_its_size() -> None:
    """Invariant 9: an empty table accepts a batch of any size, so that it can be written."""
    table = BulkTable(1000)
    assert table.has_room(10**6, 10**9)
    table.add(1, 0, due_of(1, range(5)), batch_of(1, [*range(5)]))
    assert table.has_room(10, 300)
    assert not table.has_room(10, 900)
    assert not table.has_room(100, 0)
    table.clear()
    assert table.has_room(10**6, 10**9)


def test_new_index_of_many_segments_is_merged_before_it_replaces_the_old(tmp_path: Path) -> None:
    """P5: the result respects the broker's segment limit, and no file of the old index is left."""
    index = tmp_path / "index"
    index.mkdir()
    (index / "00000001.segment").write_bytes(b"old index")
    building, expected, paths = Building(index), {}, []
    for number in range(20):
        paths.append(building.new_segment())
        expected.update(filled(paths[-1], BulkTable(10_000), [(1, number * 10, 10, False)]))
    building.new_segment().write_bytes(b"left by a job that died")
    building.name("log", {0: (7, b"group")}, paths, None)
    limits = IndexLimits(max_segments=6)
    building.merge(limits, lambda work: work())
    assert content_of(building.directory) == expected
    assert (index / "00000001.segment").exists(), "the old index stays until it is replaced"
    building.take_place()
    opened = DelayedIndex.open(index)
    assert opened.segment_count == 6
    assert opened.manifest is not None
    assert opened.manifest.positions == {0: (7, b"group")}
    assert content_of(index) == expected
    assert not building.directory.exists()


@pytest.mark.parametrize(
    "sizes", [[], [1], [4096], [4095, 2], [9 << 20], [3 << 20, 7, 2 << 20, 4096]]
)
def test_a_direct_file_has_the_bytes_in_order(tmp_path: Path, sizes: list[int]) -> None:
    """P5: for sizes of whole blocks and others."""
    rng = np.random.default_rng(len(sizes))
    pieces = [rng.bytes(size) for size in sizes]
    file = DirectFile(tmp_path / "new")
    file.writelines(pieces)
    file.flush()
    file.close()
    file.close()
    assert (tmp_path / "new").read_bytes() == b"".join(pieces)
    assert read_direct(tmp_path / "new") == b"".join(pieces)
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "new")


@pytest.mark.parametrize("size_bytes", [5 << 20, 40 << 20])
def test_failed_write_of_a_direct_file_is_raised_by_flush_at_the_latest(
    tmp_path: Path, size_bytes: int
) -> None:
    """P5: also the failure of a piece that is written while the next is gathered."""
    file, piece = DirectFile(tmp_path / "new"), bytes(1 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def write_all() -> None:
        for _ in range(size_bytes // len(piece)):
            file.write(piece)
        file.flush()

    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_all()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        file.close()
