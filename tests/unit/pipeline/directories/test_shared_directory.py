"""A directory that driver and tasks must share."""

from __future__ import annotations

from pathlib import Path

import pytest

from escapement.errors import InvalidRequest, StorageError
from escapement.pipeline.directories.shared_directory import SharedDirectory


def test_error_for_a_directory_without_the_drivers_mark_says_what_to_do(tmp_path: Path) -> None:
    """P5, N8: the directory may be that of another job, or of another machine."""
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


def test_mark_is_written_for_a_relative_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5: the data directory may be given as a relative path."""
    monkeypatch.chdir(tmp_path)
    SharedDirectory.mark_in(Path("data")).check()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["MARK"]
    with pytest.raises(StorageError, match="File exists"):
        SharedDirectory.mark_in(tmp_path / "data" / "MARK")
