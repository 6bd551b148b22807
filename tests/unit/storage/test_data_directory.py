"""The place of a data directory tells a restart from a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

from escapement.storage.data_directory import DataDirectory


def test_restart_has_the_same_place_and_a_copy_another_one(tmp_path: Path) -> None:
    """The identity is copied with the directory."""
    with DataDirectory.open(tmp_path / "first") as first:
        place, identity = first.place, first.identity
        shutil.copytree(tmp_path / "first", tmp_path / "copy", copy_function=shutil.copy2)
        with DataDirectory.open(tmp_path / "copy") as copy:
            assert copy.identity == identity
            assert copy.place != place
    with DataDirectory.open(tmp_path / "first") as again:
        assert (again.place, again.identity) == (place, identity)
