"""Durability of the delayed index: crashes at each step, torn and altered files."""

from __future__ import annotations

import resource
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.errors import IndexDamaged, StorageError
from escapement.message import Blobs, MessageBatch
from escapement.storage.index import (
    KEY_MAX,
    KEY_MIN,
    Compaction,
    DelayedIndex,
    IndexLimits,
    Lineage,
)
from escapement.storage.index.keys import MAX_DUE_MS
from escapement.storage.index.segments.block import FOOTER, BlockCache, encode
from escapement.storage.index.segments.segment import (
    COUNTS,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_BYTES,
    TRAILER_END,
    Segment,
)
from escapement.traits import traits_of
from support.faults.damaged_bytes import damaged
from support.storage.index_samples import Row, batch_of, rows_of, write_checkpoint

LIMITS = IndexLimits(block_rows=8)
STEPS = ["segment written", "segment fsynced", "manifest tmp written", "manifest renamed"]
Content = dict[tuple[int, int, int], Row]


class Crash(Exception):
    """Raised by a failpoint to simulate the end of the process."""


class CrashAt:
    """A failpoint that raises at one step, once armed."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.armed = False

    def __call__(self, name: str) -> None:
        assert name in STEPS
        if self.armed and name == self.step:
            raise Crash(name)


def fill(index: DelayedIndex, first: int, count: int) -> None:
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
            rows = rows_of(batch)
            keys = zip(due_ms.tolist(), offsets.tolist(), rows, strict=True)
            found.update({(topic, due, offset): row for due, offset, row in keys})
            assert np.array_equal(traits, traits_of(batch))
            at = plan.stop
    return found


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_a_checkpoint_leaves_the_state_before_or_after(
    tmp_path: Path, step: str
) -> None:
    """P5, invariant 7."""
    failpoint = CrashAt(step)
    index = DelayedIndex.open(tmp_path, LIMITS, failpoint)
    fill(index, 0, 50)
    write_checkpoint(index, {0: (1, b"a")})
    before = content(index)
    fill(index, 50, 50)
    after = content(index)
    failpoint.armed = True
    with pytest.raises(Crash):
        write_checkpoint(index, {0: (2, b"b"), 1: (7, b"c")})
    assert content(index) == after, "entries that could not be written stay readable"
    survivor = DelayedIndex.open(tmp_path, LIMITS)
    assert survivor.manifest is not None
    if step == "manifest renamed":
        assert survivor.manifest.positions == {0: (2, b"b"), 1: (7, b"c")}
        assert content(survivor) == after
    else:
        assert survivor.manifest.positions == {0: (1, b"a")}
        assert content(survivor) == before
    assert {p.name for p in tmp_path.iterdir()} == {"MANIFEST", *survivor.manifest.segments}


@pytest.mark.parametrize("step", STEPS)
def test_checkpoint_after_a_failed_one_writes_everything(tmp_path: Path, step: str) -> None:
    failpoint = CrashAt(step)
    index = DelayedIndex.open(tmp_path, LIMITS, failpoint)
    fill(index, 0, 50)
    failpoint.armed = True
    with pytest.raises(Crash):
        write_checkpoint(index, {0: (1, b"a")})
    failpoint.armed = False
    fill(index, 50, 50)
    everything = content(index)
    write_checkpoint(index, {0: (2, b"b")})
    assert content(index) == everything
    assert content(DelayedIndex.open(tmp_path, LIMITS)) == everything


def run_and_finish(compaction: Compaction) -> None:
    compaction.run_here()
    compaction.finish()


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_in_a_compaction_loses_nothing(tmp_path: Path, step: str) -> None:
    failpoint = CrashAt(step)
    index = DelayedIndex.open(tmp_path, LIMITS, failpoint)
    for first in (0, 50, 100):
        fill(index, first, 50)
        write_checkpoint(index, {0: (first, b"a")})
    everything = content(index)
    assert index.manifest is not None
    compaction = index.begin_compaction(list(index.manifest.segments))
    failpoint.armed = True
    with pytest.raises(Crash):
        run_and_finish(compaction)
    survivor = DelayedIndex.open(tmp_path, LIMITS)
    assert survivor.segment_count == (1 if step == "manifest renamed" else 3)
    assert content(survivor) == everything
    assert survivor.manifest is not None
    assert survivor.manifest.positions == {0: (100, b"a")}
    assert content(index) == everything, "open files outlive their names"


@pytest.mark.parametrize("checkpoint_first", [False, True])
def test_compaction_during_a_checkpoint_replaces_only_its_inputs(
    tmp_path: Path, checkpoint_first: bool
) -> None:
    index = DelayedIndex.open(tmp_path, LIMITS)
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
        compaction.finish()
    else:
        compaction.finish()
        checkpoint.finish("log", {0: (100, b"b")}, Lineage())
    index.install(checkpoint)
    index.install_compaction(compaction)
    assert index.segment_count == 2
    assert content(index) == everything
    survivor = DelayedIndex.open(tmp_path, LIMITS)
    assert content(survivor) == everything
    assert survivor.manifest == index.manifest


def test_failed_write_is_a_storage_error_and_loses_nothing(tmp_path: Path) -> None:
    def full(name: str) -> None:
        raise OSError(28, "No space left on device")

    index = DelayedIndex.open(tmp_path, LIMITS, full)
    fill(index, 0, 50)
    everything = content(index)
    with pytest.raises(StorageError, match="No space left"):
        write_checkpoint(index, {})
    assert content(index) == everything
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size_bytes", [0, 100, 5_000, 300_000])
def test_full_disk_leaves_no_partial_file_and_is_reported(tmp_path: Path, size_bytes: int) -> None:
    """The system itself refuses to write beyond a size."""
    index = DelayedIndex.open(tmp_path, LIMITS)
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
    assert content(DelayedIndex.open(tmp_path, LIMITS)) == everything


def test_full_disk_without_room_for_the_manifest_keeps_no_segment(tmp_path: Path) -> None:
    """The segment is complete, but no manifest can name it."""
    index = DelayedIndex.open(tmp_path, LIMITS)
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


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    """Return the directory and the content of an index of two segments."""
    directory = tmp_path_factory.mktemp("written")
    index = DelayedIndex.open(directory, LIMITS)
    for first in (0, 30):
        fill(index, first, 30)
        write_checkpoint(index, {0: (first, b"a")})
    return directory, content(index)


@settings(max_examples=150)
@given(st.data())
def test_altered_byte_at_any_position_is_noticed(
    written: tuple[Path, Content], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Invariant 7: damage is noticed; it never appears as other content."""
    original, expected = written
    directory = tmp_path_factory.mktemp("altered")
    shutil.copytree(original, directory, dirs_exist_ok=True)
    victim = data.draw(st.sampled_from(sorted(directory.iterdir())))
    victim.write_bytes(data.draw(damaged(victim.read_bytes())))
    with pytest.raises(IndexDamaged):
        content(DelayedIndex.open(directory, LIMITS))
    assert expected


@settings(max_examples=100)
@given(st.data())
def test_a_torn_file_is_noticed_when_the_index_opens(
    written: tuple[Path, Content], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Invariant 7: an incomplete index is rebuilt from the log."""
    directory = tmp_path_factory.mktemp("torn")
    shutil.copytree(written[0], directory, dirs_exist_ok=True)
    victim = data.draw(st.sampled_from(sorted(directory.iterdir())))
    whole = victim.read_bytes()
    victim.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(IndexDamaged):
        DelayedIndex.open(directory, LIMITS)


def test_a_missing_segment_is_damage_and_a_discarded_index_is_new(
    written: tuple[Path, Content], tmp_path: Path
) -> None:
    shutil.copytree(written[0], tmp_path, dirs_exist_ok=True)
    victim = sorted(tmp_path.glob("*.segment"))[0]
    victim.unlink()
    with pytest.raises(IndexDamaged, match=victim.name):
        DelayedIndex.open(tmp_path, LIMITS)
    DelayedIndex.discard(tmp_path)
    index = DelayedIndex.open(tmp_path, LIMITS)
    assert index.manifest is None
    assert not index.topics()
    assert not list(tmp_path.iterdir())


def test_checkpoint_without_live_messages_advances_positions_only(
    tmp_path: Path,
) -> None:
    index = DelayedIndex.open(tmp_path, LIMITS)
    fill(index, 0, 50)
    write_checkpoint(index, {3: (9, b"g")}, lambda topic, due, offsets: offsets < 0)
    assert index.segment_count == 0
    assert not index.topics()
    assert index.manifest is not None
    assert (index.manifest.log_identity, index.manifest.positions) == ("log", {3: (9, b"g")})
    write_checkpoint(index, {3: (10, b"h")})
    assert DelayedIndex.open(tmp_path).manifest == index.manifest


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
    compaction.finish()
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


def as_version_1(path: Path) -> None:
    """Convert a segment to version 1, which has no traits in its directory."""
    data = path.read_bytes()
    at, size = TRAILER.unpack_from(data, len(data) - TRAILER_BYTES)
    body = data[at + 24 : at + size]
    topics, runs = COUNTS.unpack_from(body)
    old = body[: COUNTS.size + 16 * topics + 8 * (len(RUN_COLUMNS) - 1) * runs]
    footer = b"".join(encode(FOOTER, runs, [old]))
    trailer = TRAILER.pack(at, len(footer))
    end = trailer + struct.pack("<I", zlib.crc32(trailer)) + TRAILER_END
    path.write_bytes(data[:12] + struct.pack("<I", 1) + data[16:at] + footer + end)


def test_segment_written_before_traits_existed_has_traits(tmp_path: Path) -> None:
    """V5: after an upgrade, messages stored before it are ordered like the others."""
    index = DelayedIndex.open(tmp_path, LIMITS)
    due_ms = np.sort(np.arange(40) % 7)
    batch = batch_of(2, list(range(40)))
    index.add(2, 0, due_ms, batch)
    write_checkpoint(index, {})
    (path,) = tmp_path.glob("*.segment")
    for version in (2, 1):
        if version == 1:
            as_version_1(path)
        part = Segment(path, BlockCache(1 << 20)).slice(2)
        assert part is not None
        span = part.between(KEY_MIN, KEY_MAX)
        assert span is not None
        parts = span.traits(KEY_MAX)
        traits = np.concatenate([part for part in parts if part is not None])
        assert np.array_equal(traits, traits_of(batch))
        assert part.most_traits >= traits.max()
