"""Snapshots of a log in SQLite."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from escapement.errors import (
    AlreadyExists,
    DataDirectoryInUse,
    LogDamaged,
    NotFound,
    SchemaError,
    StorageUnavailable,
)
from escapement.storage import lease, schema, snapshot
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.storage.lease import Identity
from support.storage.commit_pipelines import HandClock, committing, stored

PAYLOADS = [b"%d" % n + bytes(5000) for n in range(2000)]


def quiet(step: str, done: int, total: int) -> None:
    """Show no progress."""


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A data directory whose log has ``PAYLOADS`` in its first topic, and an owner."""
    directory = tmp_path / "data"
    directory.mkdir()
    async with committing(SqliteEngine(directory / FILE_NAME)) as house:
        topic = await house.topic("t")
        for first in range(0, len(PAYLOADS), 500):
            house.append(topic, *PAYLOADS[first : first + 500])
        await house.pipeline.drain()
    return directory


async def test_snapshot_is_one_moment_although_commits_go_on(data: Path, tmp_path: Path) -> None:
    """O9: one commit between any two steps of the copy; none of them waits or is copied."""
    engine = SqliteEngine(data / FILE_NAME)
    steps: list[tuple[str, int, int]] = []

    with closing(engine.connect()) as connection:

        def write(step: str, done: int, total: int) -> None:
            steps.append((step, done, total))
            connection.begin()
            connection.execute("UPDATE leases SET epoch = epoch + 1")
            connection.execute("UPDATE generations SET size_bytes = size_bytes + 1")
            connection.commit()

        size_bytes = snapshot.take(data, tmp_path / "s", write)
        ((epoch,),) = connection.execute("SELECT epoch FROM leases").rows
    copied = [done for step, done, _ in steps if step == "copied"]
    assert copied == sorted(set(copied)), "it began again"
    assert copied[-1] == size_bytes == (tmp_path / "s").stat().st_size
    assert epoch == 1 + len(steps)
    copy = SqliteEngine(tmp_path / "s")
    assert list(stored(copy).values()) == [PAYLOADS]
    with closing(copy.connect()) as connection:
        assert connection.execute("SELECT epoch FROM leases").rows == [(1,)]
        assert connection.execute("PRAGMA auto_vacuum").rows == [(2,)]
    assert names_in(tmp_path) == {"data", "s"}
    assert (tmp_path / "s").stat().st_mode & 0o077 == 0, "others may read the messages"


async def test_restored_log_has_the_messages_and_a_free_lease(data: Path, tmp_path: Path) -> None:
    """O9: the former owner's lease was valid, and its stop counts as unclean."""
    snapshot.take(data, tmp_path / "s", quiet)
    new = tmp_path / "new"
    (new / "index").mkdir(parents=True)
    (new / "index/MANIFEST").write_text("of another log")
    snapshot.restore(tmp_path / "s", new, quiet)
    engine = SqliteEngine(new / FILE_NAME)
    assert list(stored(engine).values()) == [PAYLOADS]
    assert not list((new / "index").iterdir())
    taken = lease.acquire(engine, Identity("another", "another"), 1000, HandClock())
    assert (taken.epoch, taken.was_clean) == (2, False)


@pytest.mark.parametrize("left", [FILE_NAME, FILE_NAME + "-wal"])
async def test_restore_refuses_a_directory_with_a_log(
    data: Path, tmp_path: Path, left: str
) -> None:
    """O9: SQLite would apply an old write-ahead log to the restored file."""
    snapshot.take(data, tmp_path / "s", quiet)
    new = tmp_path / "new"
    new.mkdir()
    (new / left).write_bytes(b"old")
    with pytest.raises(AlreadyExists, match=left):
        snapshot.restore(tmp_path / "s", new, quiet)
    assert (new / left).read_bytes() == b"old"


async def test_restore_refuses_the_directory_of_a_running_broker(
    data: Path, tmp_path: Path
) -> None:
    """O9."""
    snapshot.take(data, tmp_path / "s", quiet)
    with DataDirectory.open(tmp_path / "new"), pytest.raises(DataDirectoryInUse):
        snapshot.restore(tmp_path / "s", tmp_path / "new", quiet)


async def test_restore_refuses_a_database_that_was_copied_while_in_use(
    data: Path, tmp_path: Path
) -> None:
    """O9: the copy of the file alone lacks the commits in the write-ahead log."""
    with closing(SqliteEngine(data / FILE_NAME).connect()) as connection:
        connection.execute("UPDATE leases SET epoch = 7")
        for name in (FILE_NAME, FILE_NAME + "-wal"):
            shutil.copy(data / name, tmp_path / name)
    with pytest.raises(AlreadyExists, match="was in use"):
        snapshot.restore(tmp_path / FILE_NAME, tmp_path / "new", quiet)


async def test_damaged_snapshots_and_other_files_are_refused(data: Path, tmp_path: Path) -> None:
    """O9: each is named, and the directory gets no log."""
    good = tmp_path / "good"
    snapshot.take(data, good, quiet)
    content = good.read_bytes()
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("CREATE TABLE notes (text)")
    (tmp_path / "text").write_bytes(b"no database" * 500)
    (tmp_path / "short").write_bytes(content[: len(content) // 2])
    payload = content.index(PAYLOADS[700][:10]) + 100
    (tmp_path / "altered").write_bytes(content[:payload] + b"!" + content[payload + 1 :])
    for name in ("other", "text", "short", "altered"):
        with pytest.raises(LogDamaged):
            snapshot.restore(tmp_path / name, tmp_path / "new", quiet)
        assert not (tmp_path / "new" / FILE_NAME).exists()
    with pytest.raises(NotFound):
        snapshot.restore(tmp_path / "none", tmp_path / "new", quiet)


async def test_failed_snapshot_leaves_no_file(data: Path, tmp_path: Path) -> None:
    """O9: the target exists already, or the copy fails on the way."""
    (tmp_path / "there").write_bytes(b"kept")
    with pytest.raises(AlreadyExists):
        snapshot.take(data, tmp_path / "there", quiet)
    assert (tmp_path / "there").read_bytes() == b"kept"
    with pytest.raises(NotFound):
        snapshot.take(tmp_path, tmp_path / "s", quiet)

    def fail(step: str, done: int, total: int) -> None:
        raise StorageUnavailable("the disk is full")

    with pytest.raises(StorageUnavailable):
        snapshot.take(data, tmp_path / "s", fail)
    assert names_in(tmp_path) == {"data", "there"}


async def test_snapshot_of_an_older_version_is_migrated_and_of_a_newer_one_refused(
    data: Path, tmp_path: Path
) -> None:
    """O9: a snapshot is taken before an upgrade, perhaps by the new program."""
    with closing(SqliteEngine(data / FILE_NAME).connect()) as connection:
        newest = len(schema.migrations())
        connection.execute("DELETE FROM schema_migrations WHERE version = ?", (newest,))
        connection.execute("ALTER TABLE brokers DROP COLUMN version")
    snapshot.take(data, tmp_path / "older", quiet)
    snapshot.restore(tmp_path / "older", tmp_path / "new", quiet)
    with closing(SqliteEngine(tmp_path / "new" / FILE_NAME).connect()) as connection:
        assert schema.is_current(connection)
        connection.execute(
            "INSERT INTO schema_migrations (version, name, checksum, applied_at_ms)"
            " VALUES (?, 'newer', '', 0)",
            (newest + 1,),
        )
    with pytest.raises(SchemaError, match="newer version"):
        snapshot.take(tmp_path / "new", tmp_path / "newer", quiet)
