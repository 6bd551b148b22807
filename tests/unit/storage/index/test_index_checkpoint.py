"""Checkpoints of the delayed index: crashes at each step, and full disks."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from escapement import failpoints
from escapement.errors import StorageError
from escapement.storage.index import DelayedIndex
from support.faults.crash_points import STEPS, Crash, crash_at
from support.storage.index_samples import SMALL_BLOCKS, batch_of, content, fill, write_checkpoint


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_a_checkpoint_leaves_the_state_before_or_after(
    tmp_path: Path, step: str
) -> None:
    """P5, invariant 7."""
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    fill(index, 0, 50)
    write_checkpoint(index, {0: (1, b"a")})
    before = content(index)
    fill(index, 50, 50)
    after = content(index)
    with crash_at(step), pytest.raises(Crash):
        write_checkpoint(index, {0: (2, b"b"), 1: (7, b"c")})
    assert content(index) == after, "entries that could not be written stay readable"
    survivor = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    assert survivor.manifest is not None
    if step == "after_manifest_swap":
        assert survivor.manifest.positions == {0: (2, b"b"), 1: (7, b"c")}
        assert content(survivor) == after
    else:
        assert survivor.manifest.positions == {0: (1, b"a")}
        assert content(survivor) == before
    assert {p.name for p in tmp_path.iterdir()} == {"MANIFEST", *survivor.manifest.segments}


@pytest.mark.parametrize("step", STEPS)
def test_checkpoint_after_a_failed_one_writes_everything(tmp_path: Path, step: str) -> None:
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    fill(index, 0, 50)
    with crash_at(step), pytest.raises(Crash):
        write_checkpoint(index, {0: (1, b"a")})
    fill(index, 50, 50)
    everything = content(index)
    write_checkpoint(index, {0: (2, b"b")})
    assert content(index) == everything
    assert content(DelayedIndex.open(tmp_path, SMALL_BLOCKS)) == everything


@pytest.mark.parametrize("step", ["checkpoint_write", "before_fsync", "after_fsync"])
def test_failed_write_is_a_storage_error_and_loses_nothing(tmp_path: Path, step: str) -> None:
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    fill(index, 0, 50)
    everything = content(index)
    failpoints.set_actions(*failpoints.parse(f"{step}=error"))
    try:
        with pytest.raises(StorageError, match="No space left"):
            write_checkpoint(index, {})
    finally:
        failpoints.clear()
    assert content(index) == everything
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size_bytes", [0, 100, 5_000, 300_000])
def test_full_disk_leaves_no_partial_file_and_is_reported(tmp_path: Path, size_bytes: int) -> None:
    """The system itself refuses to write beyond a size."""
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    fill(index, 0, 50)
    write_checkpoint(index, {})
    before = {path.name for path in tmp_path.iterdir()}
    # At the largest size the manifest fits, and only a large segment is refused.
    fill(index, 50, 10_000 if size_bytes > 100_000 else 50)
    everything = content(index)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        with pytest.raises(StorageError, match=r"00000002\.segment cannot be written: .*disk full"):
            write_checkpoint(index, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name for path in tmp_path.iterdir()} == before
    assert content(index) == everything
    write_checkpoint(index, {})
    assert content(DelayedIndex.open(tmp_path, SMALL_BLOCKS)) == everything


def test_full_disk_without_room_for_the_manifest_keeps_no_segment(tmp_path: Path) -> None:
    """The segment is complete, but no manifest can name it."""
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    for number in range(40):  # enough names to make the manifest larger than a segment
        index.add(1, number, np.zeros(1, np.int64), batch_of(1, [number]))
        write_checkpoint(index, {})
    before = {path.name for path in tmp_path.iterdir()}
    index.add(1, 40, np.zeros(1, np.int64), batch_of(1, [40]))
    largest = max(path.stat().st_size for path in tmp_path.glob("*.segment"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 50, hard))
    try:
        with pytest.raises(StorageError, match="disk full"):
            write_checkpoint(index, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name for path in tmp_path.iterdir()} == before


def test_checkpoint_without_live_messages_advances_positions_only(
    tmp_path: Path,
) -> None:
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    fill(index, 0, 50)
    write_checkpoint(index, {3: (9, b"g")}, lambda topic, due, offsets: offsets < 0)
    assert index.segment_count == 0
    assert not index.topics()
    assert index.manifest is not None
    assert (index.manifest.log_identity, index.manifest.positions) == ("log", {3: (9, b"g")})
    write_checkpoint(index, {3: (10, b"h")})
    assert DelayedIndex.open(tmp_path).manifest == index.manifest
