"""`escapement check` on stores that were damaged in one way at a time, on both engines."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from escapement.check import topics
from escapement.check.check import Check
from escapement.doctor.finding import Finding, Severity
from escapement.storage.encoding.attempts import AttemptTable, encode_attempts
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.transaction import transaction
from escapement.storage.log.generation import existing_tables
from escapement.storage.offsets import OffsetSet
from support.storage.eventful_log import TOPIC, fill


@dataclass(frozen=True)
class Store:
    """The database and the data directory of a broker that has crashed, with many events."""

    engine: Engine
    data: Path
    connection: Connection

    @property
    def index(self) -> Path:
        return self.data / "index"

    def log_table(self) -> str:
        """Return the log table with the row at offset 300."""
        for table in sorted(existing_tables(self.engine, self.connection)):
            if self.connection.execute(f"SELECT 1 FROM {table} WHERE base_offset = 300").rows:
                return table
        raise AssertionError("no table has the row")

    def problems(self) -> list[Finding]:
        return [one for one in Check(self.engine, self.data).run() if one.is_bad]


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    data = tmp_path_factory.mktemp("data")
    url = request.getfixturevalue("mysql_url_of_module") if request.param == "mysql" else None
    fill(open_engine(url, data), data / "index")
    with closing(open_engine(url, data)) as engine, closing(engine.connect()) as connection:
        # As if the lease of the crashed broker had expired.
        connection.execute("UPDATE leases SET expires_at_ms = 0")
        yield Store(engine, data, connection)


@contextmanager
def rows_replaced(store: Store, table: str, where: str = "1 = 1") -> Iterator[None]:
    """Put these rows of a table back after the ``with`` block, in place of all that fit then."""
    rows = store.connection.execute(f"SELECT * FROM {table} WHERE {where}").rows
    try:
        yield
    finally:
        with transaction(store.connection):
            store.connection.execute(f"DELETE FROM {table} WHERE {where}")
            marks = ", ".join("?" * len(rows[0])) if rows else ""
            for row in rows:
                store.connection.execute(f"REPLACE INTO {table} VALUES ({marks})", row)


@contextmanager
def index_replaced(store: Store) -> Iterator[None]:
    """Put the index back after the ``with`` block."""
    aside = store.data / "sound index"
    shutil.copytree(store.index, aside)
    try:
        yield
    finally:
        shutil.rmtree(store.index, ignore_errors=True)
        aside.rename(store.index)


Harm = Callable[[Store], Iterator[None]]


def changed(table: str, change: str, where: str = "1 = 1", *params: object) -> Harm:
    """Return a harm that runs one SQL statement, which changes rows of ``table``."""

    def harm(store: Store) -> Iterator[None]:
        name = store.log_table() if table == "log" else table
        with rows_replaced(store, name, where):
            store.connection.execute(change.format(table=name), params)
            yield

    return harm


def spoilt(table: str, where: str) -> Harm:
    """Return a harm that changes one bit of the data of a row."""

    def harm(store: Store) -> Iterator[None]:
        name = store.log_table() if table == "log" else table
        with rows_replaced(store, name, where):
            data = bytearray(
                store.connection.execute(f"SELECT data FROM {name} WHERE {where}").rows[0][0]
            )
            data[len(data) // 2] ^= 1
            store.connection.execute(f"UPDATE {name} SET data = ? WHERE {where}", (bytes(data),))
            yield

    return harm


def lost_table(store: Store) -> Iterator[None]:
    name = store.log_table()
    store.connection.execute(f"ALTER TABLE {name} RENAME TO mislaid")
    try:
        yield
    finally:
        store.connection.execute(f"ALTER TABLE mislaid RENAME TO {name}")


def strange_table(store: Store) -> Iterator[None]:
    store.connection.execute("CREATE TABLE log_999_0 (id BIGINT)")
    try:
        yield
    finally:
        store.connection.execute("DROP TABLE log_999_0")


def future_acknowledged(store: Store) -> Iterator[None]:
    future = OffsetSet()
    future.add(np.array([1 << 30, (1 << 30) + 5]))
    with rows_replaced(store, "cursor_chunks"):
        for chunk, data in future.dirty_chunks().items():
            store.connection.execute("INSERT INTO cursor_chunks VALUES (1, ?, ?)", (chunk, data))
        yield


def tried(offset: int) -> Harm:
    """Return a harm that adds an attempt at a message and deletes all acknowledgements."""

    def harm(store: Store) -> Iterator[None]:
        columns = (np.array([value]) for value in (offset, 1, 0, 0))
        part = encode_attempts(AttemptTable(*columns))
        with rows_replaced(store, "attempts"), rows_replaced(store, "cursor_chunks"):
            store.connection.execute("DELETE FROM cursor_chunks WHERE subscription_id > 0")
            store.connection.execute("INSERT INTO attempts VALUES (1, 99, ?)", (part,))
            yield

    return harm


def in_the_index(change: Callable[[Path], object]) -> Harm:
    def harm(store: Store) -> Iterator[None]:
        with index_replaced(store):
            change(store.index)
            yield

    return harm


def flip(path: Path, from_end: int | None = None) -> None:
    """Change one bit of a file, in its middle or at a distance from its end."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if from_end is None else -from_end] ^= 1
    path.write_bytes(content)


def segment(index: Path) -> Path:
    return max(index.glob("*.segment"))


# For each harm: the check that reports it, and a part of its text.
HARMS: dict[str, tuple[Harm, str, str]] = {
    "a log row is lost": (
        changed("log", "DELETE FROM {table} WHERE base_offset = 300", "base_offset = 300"),
        "log order",
        f"{TOPIC}: offsets 300 to 499 are not in the log",
    ),
    "a log row is spoilt": (spoilt("log", "base_offset = 300"), "log rows", "fails its checksum"),
    "a log row has other times": (
        changed(
            "log",
            "UPDATE {table} SET max_due_ms = 1 WHERE base_offset = 300",
            "base_offset = 300",
        ),
        "log rows",
        "other times in its data than in its columns",
    ),
    "a moved message is lost": (
        changed("log", "DELETE FROM {table} WHERE base_offset = -2", "base_offset = -2"),
        "topic state",
        "the log lacks a row that was committed",
    ),
    "the beginning of the log is lost": (
        changed("log", "DELETE FROM {table} WHERE base_offset = 200", "base_offset = 200"),
        "log order",
        "are no longer in the log, but subscription s has not acknowledged them",
    ),
    "a log table is lost": (lost_table, "log tables", "which does not exist"),
    "a log table is unknown": (strange_table, "orphaned rows", "table log_999_0"),
    "the journal has a gap": (
        changed("journal", "DELETE FROM journal WHERE seq = (SELECT * FROM (SELECT MAX(seq) - 1"
                " FROM journal) AS last)"),
        "journal",
        "lacks entry",
    ),
    "the journal is spoilt": (
        spoilt("journal", "seq > 0"), "journal", "a journal entry fails its checksum",
    ),
    "the lease is lost": (
        changed("leases", "DELETE FROM leases"), "lease", "the row of the lease is missing",
    ),
    "the lease is from another time": (
        changed("leases", "UPDATE leases SET epoch = 0"), "lease", "the lease has epoch 0",
    ),
    "a cursor is spoilt": (spoilt("cursor_chunks", "chunk = 0"), "topic state", "checksum"),
    "dedup keys are spoilt": (
        changed("dedup_keys", "INSERT INTO dedup_keys VALUES (1, 99, X'78')"),
        "topic state",
        "dedup_keys, part 99 of topic 1: a part of 1 bytes",
    ),
    "replace keys are spoilt": (
        changed("replace_keys", "INSERT INTO replace_keys VALUES (1, 99, X'78')"),
        "topic state",
        "replace_keys, part 99 of topic 1: a part of 1 bytes",
    ),
    "a cursor is ahead of the log": (
        future_acknowledged,
        "cursors",
        "2 offsets beyond the end of the log are acknowledged by s",
    ),
    "a cursor is behind the index": (
        changed("cursor_chunks", "DELETE FROM cursor_chunks WHERE subscription_id > 0"),
        "index",
        "pending messages",
    ),
    "a retry has no message": (
        tried(10**6),
        "retry state",
        "1 offsets beyond the end of the log have attempts by s",
    ),
    "a retry is of a forgotten message": (
        tried(100),
        "retry state",
        "1 messages, the first at offset 100, have attempts by s, and are no longer in the log",
    ),
    "rows have no owner": (
        changed("cursor_chunks", "INSERT INTO cursor_chunks VALUES (77, 0, 'x')"),
        "orphaned rows",
        "cursor_chunks has rows of unknown subscriptions: 77",
    ),
    "a topic is lost": (
        changed("topics", "DELETE FROM topics"), "catalog", "1 subscriptions have no topic",
    ),
    "the manifest is spoilt": (
        in_the_index(lambda index: flip(index / "MANIFEST")), "index files", "MANIFEST: fails",
    ),
    "a block is spoilt": (
        in_the_index(lambda index: flip(segment(index))), "index files", "fails its checksum",
    ),
    "the directory of a segment is spoilt": (
        in_the_index(lambda index: flip(segment(index), 1)), "index files", "trailer",
    ),
    "a segment is lost": (
        in_the_index(lambda index: segment(index).unlink()), "index files", "No such file",
    ),
    "the index is of another log": (
        changed("log_identity", "UPDATE log_identity SET identity = ?", "1 = 1", bytes(16)),
        "stale index",
        "the index does not fit the log",
    ),
}  # fmt: skip


def test_intact_store_has_no_problem_and_stays_unchanged(store: Store) -> None:
    """O7: a broker that has crashed is a notice, and files that its crash left are another."""
    left = store.index / "00000099.segment"
    left.write_bytes(b"unfinished")
    files = sorted(store.index.iterdir())
    progress: list[str] = []
    findings = Check(store.engine, store.data, progress.append).run()
    segments = len(list(store.index.glob("*.segment"))) - 1
    assert f"index segment {segments} of {segments}" in progress
    assert f"{TOPIC}: stretch 1 of 1 of its group" in progress
    assert not [one for one in findings if one.is_bad]
    notices = {one.check for one in findings if one.severity is Severity.NOTICE}
    assert notices == {"lease", "orphaned files"}
    assert sorted(store.index.iterdir()) == files
    left.unlink()
    (log,) = [one for one in findings if one.check == "log"]
    assert "topics: 1, log rows: 2, messages: 302" in log.text


@pytest.mark.parametrize("harm", HARMS)
def test_each_damage_is_named_in_words_with_a_remedy(store: Store, harm: str) -> None:
    """O7"""
    damaging, check, said = HARMS[harm]
    with contextmanager(damaging)(store):
        found = store.problems()
    named = [one for one in found if one.check == check and said in one.text]
    assert named, found
    assert all(one.remedy for one in found)
    assert not store.problems(), "the harm was undone"


def test_old_index_of_a_bundle_that_another_node_has_taken_is_a_notice(store: Store) -> None:
    """O7: each of several nodes keeps the indexes of bundles that it gave away."""
    damaging, check, _ = HARMS["the index is of another log"]
    identity = store.data / "broker.id"
    ((owner_name,),) = store.connection.execute("SELECT owner_name FROM leases").rows
    with contextmanager(damaging)(store):
        assert [one.check for one in store.problems()] == [check]
        identity.write_text("f" * 32)
        (found,) = [one for one in Check(store.engine, store.data).run() if one.check == check]
        identity.unlink()
    assert found.severity is Severity.NOTICE
    assert f"from before node {owner_name} took the bundle; it is not used" in found.text


@pytest.mark.parametrize("discards", [True, False])
def test_check_waits_for_a_broker_that_takes_a_bundle_to_discard_its_old_index(
    store: Store, monkeypatch: pytest.MonkeyPatch, discards: bool
) -> None:
    """O7: it has the lease already. An index that stays is a problem."""
    damaging, check, _ = HARMS["the index is of another log"]
    ((owner_id,),) = store.connection.execute("SELECT owner_id FROM leases").rows
    identity = store.data / "broker.id"
    waits_s: list[float] = []

    def wait(seconds: float) -> None:
        waits_s.append(seconds)
        if discards:
            (store.index / "MANIFEST").unlink()

    monkeypatch.setattr(topics, "time", SimpleNamespace(sleep=wait))
    with contextmanager(damaging)(store), index_replaced(store), rows_replaced(store, "leases"):
        store.connection.execute("UPDATE leases SET expires_at_ms = 253402300798999")
        identity.write_text(owner_id)
        found = [one.check for one in store.problems()]
        identity.unlink()
    assert found == ([] if discards else [check])
    assert len(waits_s) == (1 if discards else topics._TRIES - 1)
