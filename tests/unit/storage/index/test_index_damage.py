"""Damage of the delayed index: altered, torn and missing files are noticed."""

from __future__ import annotations

import os
import resource
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from escapement.errors import IndexDamaged, StorageError
from escapement.storage.index import DelayedIndex
from escapement.storage.index.segments.block import FOOTER, BlockCache, encode
from escapement.storage.index.segments.manifest import Manifest
from escapement.storage.index.segments.segment import (
    COUNTS,
    HEADER,
    RUN_COLUMNS,
    TRAILER,
    TRAILER_END,
    Segment,
)
from support.faults.damaged_bytes import damaged
from support.storage.index_samples import SMALL_BLOCKS, Content, content, fill, write_checkpoint


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    """Return the directory and the content of an index of two segments."""
    directory = tmp_path_factory.mktemp("written")
    index = DelayedIndex.open(directory, SMALL_BLOCKS)
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
        content(DelayedIndex.open(directory, SMALL_BLOCKS))
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
        DelayedIndex.open(directory, SMALL_BLOCKS)


def test_a_missing_segment_is_damage_and_a_discarded_index_is_new(
    written: tuple[Path, Content], tmp_path: Path
) -> None:
    shutil.copytree(written[0], tmp_path, dirs_exist_ok=True)
    victim = sorted(tmp_path.glob("*.segment"))[0]
    victim.unlink()
    with pytest.raises(IndexDamaged, match=victim.name):
        DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    DelayedIndex.discard(tmp_path)
    index = DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    assert index.manifest is None
    assert not index.topics()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "body",
    [b'{"positions": {}, "segments": {"a": Infinity}}', b"[" * 100_000, b"[]", b"7", b"\xff"],
)
def test_manifest_with_a_correct_checksum_and_wrong_content_is_damage(body: bytes) -> None:
    with pytest.raises(IndexDamaged):
        Manifest.decode(b"escapement index manifest 1 %08x\n" % crc32(body) + body, "here")


@pytest.mark.parametrize(
    ("topics", "runs"),
    [
        ([], [1]),  # a run of no topic
        ([1, 5], [1]),  # a topic whose first run does not exist
        ([1, 0, 1, 0], [1]),  # a topic twice
        ([1, 0], [0]),  # a run without messages
        ([1, 0], [2**40]),  # more messages than the file has bytes
        ([1, 0], [-1]),
    ],
)
def test_directory_that_contradicts_itself_is_damage(
    topics: list[int], runs: list[int], tmp_path: Path
) -> None:
    """The check comes before memory is taken for the messages."""
    columns = [1 if name == "rows" else 0 for name in RUN_COLUMNS]
    columns[RUN_COLUMNS.index("rows")] = runs[0]
    ids, firsts = topics[::2], topics[1::2]
    directory = np.array([*ids, *firsts, *columns], "<i8").tobytes()
    footer = b"".join(encode(FOOTER, 1, [COUNTS.pack(len(ids), 1), directory]))
    trailer = TRAILER.pack(16, len(footer))
    path = tmp_path / "1.segment"
    path.write_bytes(
        HEADER.ljust(16, b"\0") + footer + trailer + struct.pack("<I", crc32(trailer)) + TRAILER_END
    )
    with pytest.raises(IndexDamaged, match="contradicts itself"):
        Segment(path, BlockCache(1 << 20))


def test_too_many_open_files_are_no_damage(written: tuple[Path, Content]) -> None:
    """P5: an index that the process may not open now is kept, and usable by the next start."""
    directory, expected = written
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The next descriptor is the lowest free one. The limit leaves none, or those of one file.
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(
            StorageError, match="MANIFEST cannot be read: Too many open"
        ) as manifest:
            DelayedIndex.open(directory, SMALL_BLOCKS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        with pytest.raises(StorageError, match="segment cannot be read: Too many open") as segment:
            DelayedIndex.open(directory, SMALL_BLOCKS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert type(manifest.value) is type(segment.value) is StorageError
    assert content(DelayedIndex.open(directory, SMALL_BLOCKS)) == expected


def test_file_that_cannot_be_deleted_is_a_storage_error(tmp_path: Path) -> None:
    """The system refuses to delete a directory as a file."""
    fill(index := DelayedIndex.open(tmp_path, SMALL_BLOCKS), 0, 30)
    write_checkpoint(index, {})
    (tmp_path / "stray").mkdir()
    with pytest.raises(StorageError, match="stray"):
        DelayedIndex.open(tmp_path, SMALL_BLOCKS)
    with pytest.raises(StorageError, match="stray"):
        DelayedIndex.discard(tmp_path)
    (tmp_path / "stray").rmdir()
    DelayedIndex.discard(tmp_path)
    assert not DelayedIndex.open(tmp_path, SMALL_BLOCKS).topics()
