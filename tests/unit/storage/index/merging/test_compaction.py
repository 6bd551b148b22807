"""Compaction: merged segments, crashes at each step, and the child process that merges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from escapement.errors import IndexDamaged, StorageError
from escapement.message import Blobs, MessageBatch
from escapement.storage.index import KEY_MAX, KEY_MIN, Compaction, DelayedIndex, Lineage
from escapement.storage.index.keys import MAX_DUE_MS
from support.faults.crash_points import STEPS, Crash, crash_at
from support.storage.index_samples import (
    SMALL_BLOCKS,
    add_range,
    batch_of,
    content,
    fill,
    write_checkpoint,
)


def run_and_finish(compaction: Compaction) -> None:
    compaction.run_here()
    compaction.finish({})


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_a_compaction_loses_nothing(tmp_path: Path, step: str) -> None:
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    for first in (0, 50, 100):
        fill(index, first, 50)
        write_checkpoint(index, {0: (first, b"a")})
    everything = content(index)
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments))
    with crash_at(step), pytest.raises(Crash):
        run_and_finish(compaction)
    survivor = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    assert survivor.segment_count == (1 if step == "after_manifest_swap" else 3)
    assert content(survivor) == everything
    assert survivor.manifest is not None
    assert survivor.manifest.positions == {0: (100, b"a")}
    assert content(index) == everything, "open files outlive their names"


@pytest.mark.parametrize("checkpoint_first", [False, True])
def test_compaction_during_a_checkpoint_replaces_only_its_inputs(
    tmp_path: Path, checkpoint_first: bool
) -> None:
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    for first in (0, 50):
        fill(index, first, 50)
        write_checkpoint(index, {0: (first, b"a")})
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments))
    compaction.run_here()
    fill(index, 100, 50)
    checkpoint = index.begin_checkpoint()
    for group in checkpoint.groups():
        checkpoint.write(group, [None] * len(group.parts()))
    everything = content(index)
    if checkpoint_first:
        checkpoint.finish("log", {0: (100, b"b")}, Lineage())
        compaction.finish({})
    else:
        compaction.finish({})
        checkpoint.finish("log", {0: (100, b"b")}, Lineage())
    index.install(checkpoint)
    index.install_compaction(compaction)
    assert index.segment_count == 2
    assert content(index) == everything
    survivor = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    assert content(survivor) == everything
    assert survivor.manifest == index.manifest


def large_index(directory: Path) -> DelayedIndex:
    """Return an index of two segments that are too large to be merged in this process."""
    index = DelayedIndex.open(directory)
    count, width = 12_000, 500
    for first in (0, count):
        blobs = Blobs(np.full(count, width, np.uint32), bytes([first % 251]) * (count * width))
        due_ms = np.random.default_rng(first).integers(0, 1000, count)
        index.add(1, first, due_ms, MessageBatch(blobs))
        write_checkpoint(index, {})
    return index


@pytest.mark.parametrize("far_ms", [MAX_DUE_MS, 100])
def test_a_large_compaction_runs_in_a_child_process(tmp_path: Path, far_ms: int) -> None:
    """The merged file is read soon, or is written past the system's cache."""
    index = large_index(tmp_path)
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments), far_ms=far_ms)
    (topic,) = compaction.ranges()
    assert topic == (1, 0, 23_999)
    for first in range(0, 24_000, 1000):  # all but every tenth offset, in pieces
        piece = np.arange(first, first + 1000)
        compaction.exclude(1, piece[piece % 10 != 0])
    compaction.run()
    compaction.finish({})
    index.install_compaction(compaction)
    due_ms, offsets = DelayedIndex.open(tmp_path).plan(1, KEY_MIN, KEY_MAX, 10**6).read()
    assert sorted(offsets.tolist()) == list(range(0, 24_000, 10))
    assert index.disk_bytes < 2 << 20
    assert len(index.fetch(1, due_ms, offsets).read().payloads.data) == 2400 * 500


def test_damage_found_by_the_child_process_is_reported_as_damage(tmp_path: Path) -> None:
    index = large_index(tmp_path)
    assert index.manifest is not None
    victim = sorted(tmp_path.glob("*.segment"))[0]
    altered = bytearray(victim.read_bytes())
    altered[len(altered) // 2] ^= 1
    victim.write_bytes(altered)
    compaction = index.begin_compaction(list(index.manifest.segments))
    with pytest.raises(IndexDamaged, match=victim.name):
        compaction.run()
    index.abandon_compaction(compaction)
    assert len(list(tmp_path.iterdir())) == 3


def test_abandoned_compaction_starts_no_child_process(tmp_path: Path) -> None:
    index = large_index(tmp_path)
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments))
    index.abandon_compaction(compaction)
    with pytest.raises(StorageError):
        compaction.run()
    assert index.segment_count == 2


def test_child_process_ends_when_its_input_is_closed() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "escapement.storage.index"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    child.communicate(b"", timeout=30)  # closes its input without a job
    assert child.returncode != 0


def test_excluded_messages_are_kept_until_they_are_due(tmp_path: Path) -> None:
    """N3: a new subscription, or one after a seek, may still need them."""
    index = DelayedIndex.open(tmp_path)
    add_range(index, 1, 0, 10, 5)
    add_range(index, 1, 10, 10, 7)
    write_checkpoint(index, {})
    compaction = index.begin_compaction([s.name for s in tmp_path.glob("*.segment")], 6)
    compaction.exclude(1, np.arange(20))
    compaction.run_here()
    compaction.finish({})
    index.install_compaction(compaction)
    due_ms, offsets = index.plan(1, KEY_MIN, KEY_MAX, 1000).read()
    assert set(due_ms.tolist()) == {7}
    assert offsets.tolist() == list(range(10, 20))


def test_compaction_keeps_one_key_or_none_of_an_outdated_message(tmp_path: Path) -> None:
    """B1: for messages that are due or not, and for one that is excluded too."""
    index = DelayedIndex.open(tmp_path)
    for topic in (1, 2):
        for due_ms in (5, 7, 9):
            offsets = np.arange(20)
            index.add(topic, offsets, np.full(20, due_ms), batch_of(topic, offsets.tolist()))
            write_checkpoint(index, {})
    compaction = index.begin_compaction([s.name for s in tmp_path.glob("*.segment")], 6)
    compaction.exclude(1, np.array([1, 2]))
    compaction.outdate(1, np.array([2, 3, 4, 11]), np.array([5, 7, -1, 9]))
    compaction.outdate(1, np.array([12]), np.array([-1]))
    compaction.run_here()
    compaction.finish({})
    index.install_compaction(compaction)
    due_ms, offsets = index.plan(1, KEY_MIN, KEY_MAX, 1000).read()
    found: dict[int, list[int]] = {}
    for due, offset in zip(due_ms.tolist(), offsets.tolist(), strict=True):
        found.setdefault(offset, []).append(due)
    changed = {1: [7, 9], 3: [7], 11: [9]}
    gone = (2, 4, 12)
    assert found == {n: changed.get(n, [5, 7, 9]) for n in range(20) if n not in gone}
    assert index.count(2) == 60
    assert {path.suffix for path in tmp_path.iterdir()} == {"", ".segment"}


def test_dropped_topic_leaves_memory_at_once_and_the_disk_when_merged(tmp_path: Path) -> None:
    index = DelayedIndex.open(tmp_path)
    for topic in (1, 2):
        add_range(index, topic, 0, 10, 5)
    write_checkpoint(index, {})
    for topic in (1, 2):
        add_range(index, topic, 10, 10, 5)
    index.drop_topic(1)
    index.add(1, 20, np.array([5]), batch_of(1, [20]))
    assert index.topics() == {2}
    assert index.count(1) == 0
    assert not len(index.plan(1, KEY_MIN, KEY_MAX, 10).read()[0])
    assert index.next_due(1, KEY_MIN) is None
    write_checkpoint(index, {})
    # After a start the index names the topic until the caller drops it again.
    index = DelayedIndex.open(tmp_path)
    assert index.topics() == {1, 2}
    index.drop_topic(1)
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments))
    assert [each.topic_id for each in compaction.ranges()] == [2]
    compaction.run()
    compaction.finish({})
    index.install_compaction(compaction)
    assert DelayedIndex.open(tmp_path).topics() == {2}


def test_merge_that_cannot_clean_up_is_given_up_and_repeated(tmp_path: Path) -> None:
    """The system refuses to write, and to delete, a directory as a file."""
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    for first in (0, 50):
        fill(index, first, 50)
        write_checkpoint(index, {0: (first, b"a")})
    everything = content(index)
    assert index.manifest is not None
    names = list(index.manifest.segments)
    compaction = index.begin_compaction(names)
    (tmp_path / "00000003.segment").mkdir()
    with pytest.raises(StorageError, match=r"00000003\.segment cannot be written"):
        compaction.run_here()
    index.abandon_compaction(compaction)
    compaction = index.begin_compaction(names)
    run_and_finish(compaction)
    index.install_compaction(compaction)
    assert index.segment_count == 1
    assert content(index) == everything
