"""A directory that driver and tasks must see as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from escapement.errors import InvalidRequest, StorageError
from escapement.pipeline.directories.shared_directory import SharedDirectory


def test_where_the_drivers_mark_is_not_to_be_seen_it_is_said_what_to_do(tmp_path: Path) -> None:
    """P5, N8: of a directory that another job, or another machine, has under that name."""
    shared = SharedDirectory.mark_in(tmp_path / "archive" / "run")
    shared.check()
    for other in (
        SharedDirectory(shared.directory, "another"),
        SharedDirectory(tmp_path / "elsewhere", shared.mark),
        SharedDirectory(shared.directory / "MARK", shared.mark),
    ):
        with pytest.raises(InvalidRequest) as refused:
            other.check()
        said = str(refused.value)
        assert f"does not see {other.directory} as the driver does: use a directory" in said
        assert "on a file system that driver and workers share under one name" in said
        assert "\n" not in said


def test_a_mark_is_in_the_directory_that_the_process_calls_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the data directory may be named as one likes."""
    monkeypatch.chdir(tmp_path)
    SharedDirectory.mark_in(Path("data")).check()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["MARK"]
    with pytest.raises(StorageError, match="File exists"):
        SharedDirectory.mark_in(tmp_path / "data" / "MARK")
