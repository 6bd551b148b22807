"""Damage of the delayed index: altered, torn and missing files are noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.errors import IndexDamaged
from escapement.storage.index import DelayedIndex
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
