"""SQLite databases that are full, damaged, missing or in memory."""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from escapement.errors import OutcomeUnknown, StorageError, StorageUnavailable
from escapement.storage.engine.base import Connection
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine

INSERT = "INSERT INTO blobs (b) VALUES (?)"
MIB = 1 << 20


def count(connection: Connection) -> int:
    ((found,),) = connection.execute("SELECT COUNT(*) FROM blobs").rows
    assert isinstance(found, int)
    return found


def make_table(connection: Connection) -> None:
    connection.execute("CREATE TABLE blobs (b BLOB)")


@pytest.fixture
def engine(tmp_path: Path) -> SqliteEngine:
    return SqliteEngine(tmp_path / FILE_NAME)


@pytest.fixture
def one(engine: SqliteEngine) -> Iterator[Connection]:
    connection = engine.connect()
    make_table(connection)
    yield connection
    connection.close()


def test_every_commit_is_synced_to_disk(one: Connection) -> None:
    assert one.execute("PRAGMA journal_mode").rows == [("wal",)]
    assert one.execute("PRAGMA synchronous").rows == [(2,)]


def test_without_a_url_the_log_is_a_file_of_the_data_directory(tmp_path: Path) -> None:
    odd = tmp_path / "what? #1 100%25 ünï"
    odd.mkdir()
    engine = open_engine(None, odd)
    engine.check_fitness()
    assert engine.location == str(odd / FILE_NAME)
    assert {path.name for path in odd.iterdir()} >= {FILE_NAME}
    assert {path.name for path in tmp_path.iterdir()} == {odd.name}


def test_full_database_raises_unavailable_and_keeps_its_rows(
    engine: SqliteEngine, one: Connection
) -> None:
    one.execute(INSERT, (bytes(1000),))
    one.execute("PRAGMA max_page_count = 20")
    one.begin()
    with pytest.raises(StorageUnavailable) as caught:
        one.execute(INSERT, (bytes(MIB),))
    assert caught.value.retryable
    with pytest.raises(StorageUnavailable):
        one.begin()
    again = engine.connect()
    assert count(again) == 1
    again.begin()
    again.execute(INSERT, (bytes(MIB),))
    again.commit()
    assert count(again) == 2
    again.close()


def test_commit_that_fails_on_disk_raises_outcome_unknown(
    engine: SqliteEngine, one: Connection
) -> None:
    one.begin()
    one.execute(INSERT, (bytes(MIB),))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB // 2, hard))
    try:
        with pytest.raises(OutcomeUnknown):
            one.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(StorageUnavailable):
        one.begin()
    again = engine.connect()
    assert count(again) == 0
    again.begin()
    again.execute(INSERT, (b"x",))
    again.commit()
    assert count(again) == 1
    again.close()


def test_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"this is a letter, not a log" * 1000)
    with pytest.raises(StorageError, match=FILE_NAME) as caught:
        open_engine(None, tmp_path).connect()
    assert not caught.value.retryable


def test_error_names_the_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nowhere"):
        open_engine(None, tmp_path / "nowhere").connect()


def test_a_database_in_memory_lives_as_long_as_its_engine() -> None:
    engine, other = SqliteEngine.in_memory(), SqliteEngine.in_memory()
    first = engine.connect()
    make_table(first)
    first.execute(INSERT, (b"x",))
    first.close()
    second = engine.connect()
    assert count(second) == 1
    with_none = other.connect()
    with pytest.raises(StorageError, match="no such table"):
        count(with_none)
    for closing in (second, with_none, engine, other):
        closing.close()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_writers_on_many_threads_wait_for_each_other(engine: SqliteEngine, kind: str) -> None:
    shared = engine if kind == "file" else SqliteEngine.in_memory()
    first = shared.connect()
    first.execute("CREATE TABLE counters (n BIGINT)")
    first.execute("INSERT INTO counters VALUES (0)")

    def count_up() -> None:
        connection = shared.connect()
        for _ in range(10):
            connection.begin()
            ((n,),) = connection.execute("SELECT n FROM counters").rows
            connection.execute("UPDATE counters SET n = ?", (n + 1,))
            connection.commit()
        connection.close()

    threads = [threading.Thread(target=count_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert first.execute("SELECT n FROM counters").rows == [(30,)]
    first.close()
    shared.close()
