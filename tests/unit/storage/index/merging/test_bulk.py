"""Segments written in bulk contain all messages, in whatever order they were added."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.storage.index import DelayedIndex
from escapement.storage.index.building import Building
from escapement.storage.index.merging.bulk import BulkTable
from support.storage.bulk_segments import due_of, filled
from support.storage.index_samples import batch_of, content

# (topic, first offset, messages, whether the offsets are named one by one)
batches = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 60), st.integers(1, 20), st.booleans()),
    min_size=1,
    max_size=8,
)


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
            building.name("log", {}, [path], None, 0)
            building.install()
            assert content(DelayedIndex.open(Path(directory) / "index")) == expected


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
