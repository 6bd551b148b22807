"""Files of a job become an archive, whichever step a crash interrupts; both databases."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from escapement.errors import Conflict, EscapementError, StorageError
from escapement.pipeline.archive_manifest import ArchivedFile, Manifest
from escapement.pipeline.archiving.archive_folder import ArchiveFolder, Ready
from escapement.pipeline.directories.local_directory import LocalDirectory, local_path
from escapement.pipeline.selection import Selection, Span
from escapement.storage import archive_record
from escapement.storage.catalog import catalog
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.offsets import OffsetSet
from support.faults.dying_brokers import DiesAt
from support.storage.commit_pipelines import FaultyEngine, no_fault


class CrashingDirectory(LocalDirectory):
    """A directory before each change of which the process may crash."""

    def __init__(self, root: Path, before: Callable[[str], None] = no_fault) -> None:
        super().__init__(f"file:{root}")
        self._before = before

    def write(self, path: str, content: bytes) -> None:
        self._before("write")
        super().write(path, content)

    def move(self, path: str, to: str) -> None:
        self._before("move")
        super().move(path, to)

    def delete(self, path: str) -> None:
        self._before("delete")
        super().delete(path)


def file(path: str, low: int, high: int) -> ArchivedFile:
    return ArchivedFile(path, 7, "00", high - low, low, high - 1, 10, 20, 1, 2, "11")


def ready(folder: ArchiveFolder, topic_id: int, run: str) -> Ready:
    """Write two files of a topic to the directory of the run, ready to be archived."""
    files, names = [], []
    for low in (0, 100):
        files.append(file(f"topic={topic_id}/part-{run}-{low}", low, low + 100))
        names.append(f"{topic_id}-{low}")
        directory = local_path(folder.begin(run))
        assert directory is not None
        there = directory / names[-1]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(b"content")
    offsets = OffsetSet()
    offsets.add_range(0, 200)
    manifest = Manifest("t/n/x", topic_id, folder.log, run, folder.root, 5, tuple(files))
    return Ready(manifest, offsets, tuple(names))


def there(root: Path) -> set[str]:
    """Return the paths of all files."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_crash_at_any_step_archives_nothing_twice_and_loses_nothing(
    engine: Engine, connection: Connection, tmp_path: Path
) -> None:
    """N8: files that no record names are deleted. All files that a record names exist."""
    space = catalog.create_namespace(connection, "t", "n", 0)
    faulty = FaultyEngine(engine)
    for number in count(1):
        ids = [catalog.create_topic(connection, space.id, f"{number}{x}", 0).id for x in "ab"]
        root = tmp_path / str(number)
        root.mkdir()
        victim = faulty.connect()
        faulty.before = dies = DiesAt(number)
        try:
            folder = ArchiveFolder(CrashingDirectory(root, dies), faulty, victim)
            some = [ready(folder, id, "one") for id in ids]
            folder.put("one", some)
            assert [folder.record(one) for one in some] == [True, True]
            folder.clear()
        except EscapementError:
            pass
        faulty.before = no_fault
        victim.close()
        folder = ArchiveFolder(CrashingDirectory(root), engine, connection)
        folder.clear()
        for id in ids:
            recorded = archive_record.records(connection, id)
            wanted = {f"topic={id}/part-one-0", f"topic={id}/part-one-100"}
            wanted.add(f"_manifests/one-{id}.json")
            assert wanted & there(root) == (wanted if recorded else set())
            if not recorded:
                again = ready(folder, id, "two")
                folder.put("two", [again])
                assert folder.record(again)
                folder.clear()
            assert len(archive_record.archived(connection, id)) == 200
            (row,) = archive_record.records(connection, id)
            manifest = Manifest.decode(row.manifest)
            assert {one.path for one in manifest.files} < there(root)
        assert len(there(root)) == 6
        if not dies.dead:
            break
    assert number > 15


def test_clear_keeps_files_of_another_log(
    engine: Engine, connection: Connection, tmp_path: Path
) -> None:
    """N8: several logs may share a root."""
    other = tmp_path / "_runs" / "0123-one" / "part"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")
    ArchiveFolder(CrashingDirectory(tmp_path), engine, connection).clear()
    assert other.read_bytes() == b"theirs"


def test_files_of_a_deleted_or_already_archived_topic_are_deleted(
    engine: Engine, connection: Connection, tmp_path: Path
) -> None:
    """N8."""
    space = catalog.create_namespace(connection, "t", "n", 0)
    topic = catalog.create_topic(connection, space.id, "x", 0)
    folder = ArchiveFolder(CrashingDirectory(tmp_path / "root"), engine, connection)
    for run in ("one", "two"):
        once = ready(folder, topic.id, run)
        folder.put(run, [once])
        if run == "one":
            assert folder.record(once)
        else:
            with pytest.raises(Conflict, match="200 messages"):
                folder.record(once)
        folder.clear()
    assert {path for path in there(tmp_path / "root") if "two" in path} == set()
    assert len(there(tmp_path / "root")) == 3
    catalog.delete_topic(connection, topic.id)
    late = ready(folder, topic.id, "three")
    folder.put("three", [late])
    assert not folder.record(late)
    folder.clear()
    assert {path for path in there(tmp_path / "root") if "three" in path} == set()


def test_manifest_is_decoded_unchanged_and_selects_files() -> None:
    """N8, B7."""
    manifest = Manifest("t/n/x", 3, "ab", "run", "s3a://b/a", 5, (file("a", 0, 10),))
    assert Manifest.decode(manifest.encode()) == manifest
    with pytest.raises(StorageError, match="cannot be read"):
        Manifest.decode(manifest.encode()[:-9])
    (one,) = manifest.files
    for selection, found in (
        (Selection(), True),
        (Selection(Span(9, 11)), True),
        (Selection(Span(10, 11)), False),
        (Selection(due=Span(20, 21)), True),
        (Selection(due=Span(21, 30)), False),
        (Selection(published=Span(0, 1)), False),
    ):
        assert one.may_have(selection) == found
