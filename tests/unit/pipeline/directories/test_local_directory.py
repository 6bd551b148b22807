"""An archive in a local directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from escapement.errors import StorageError
from escapement.pipeline.directories.local_directory import LocalDirectory, local_path


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:/mnt/an archive", "/mnt/an archive"),
        ("file:///mnt/a%20b", "/mnt/a%20b"),
        ("viewfs://here/mnt", None),
        ("s3a://bucket/file:/x", None),
    ],
)
def test_only_file_uris_are_local(uri: str, path: str | None) -> None:
    """N8: percent signs in a path are not escapes."""
    assert local_path(uri) == (None if path is None else Path(path))


def test_written_and_moved_files_are_found(tmp_path: Path) -> None:
    """N8: missing directories are created; a missing file reads as None."""
    directory = LocalDirectory(f"file:{tmp_path}/root")
    assert (directory.directories("a"), directory.read("a/b")) == ([], None)
    directory.delete("a")
    directory.write("a/b/note", b"1")
    directory.write("a/b/note", b"2")
    directory.write("a/x", b"3")
    assert (directory.directories("a"), directory.read("a/b/note")) == (["b"], b"2")
    directory.move("a/x", "c/d/y")
    directory.settle()
    assert (directory.read("a/x"), directory.read("c/d/y")) == (None, b"3")
    directory.delete("c/d/y")
    directory.delete("a")
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["root", "root/c", "root/c/d"]


def test_written_and_moved_files_are_durable_with_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N8: the log forgets archived messages, so archived files must survive a power loss."""
    flushed: set[str] = set()
    fsync = os.fsync

    def seen(descriptor: int) -> None:
        flushed.add(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(f"{tmp_path}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    directory = LocalDirectory(f"file:{tmp_path}/root")
    directory.write("runs/one/note", b"1")
    assert flushed == {"", "/root", "/root/runs", "/root/runs/one", "/root/runs/one/note"}
    flushed.clear()
    directory.move("runs/one/note", "topic/day/file")
    directory.settle()
    assert flushed == {"/root", "/root/topic", "/root/topic/day"}
    flushed.clear()
    directory.settle()
    assert not flushed


def test_failed_write_or_move_names_the_path(tmp_path: Path) -> None:
    """N8: the whole path, for a user who lacks permissions."""
    (tmp_path / "file").write_bytes(b"")
    directory = LocalDirectory(f"file:{tmp_path}")
    with pytest.raises(StorageError, match=f"^{tmp_path}/file/x: File exists"):
        directory.write("file/x", b"")
    with pytest.raises(StorageError, match=f"^{tmp_path}/gone: No such file"):
        directory.move("gone", "there")
