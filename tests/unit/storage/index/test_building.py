"""A new index replaces the old one when it is complete."""

from __future__ import annotations

from pathlib import Path

from escapement.storage.index import DelayedIndex, IndexLimits
from escapement.storage.index.building import Building
from escapement.storage.index.merging.bulk import BulkTable
from support.storage.bulk_segments import filled
from support.storage.index_samples import content


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
    building.name("log", {0: (7, b"group")}, paths, None, 0)
    limits = IndexLimits(max_segments=6)
    building.merge(limits, lambda work: work())
    assert content(DelayedIndex.open(building.directory)) == expected
    assert (index / "00000001.segment").exists(), "the old index stays until it is replaced"
    building.install()
    opened = DelayedIndex.open(index)
    assert opened.segment_count == 6
    assert opened.manifest is not None
    assert opened.manifest.positions == {0: (7, b"group")}
    assert content(opened) == expected
    assert not building.directory.exists()
