"""The contract of ``escapement.storage.engine.base``, checked with every engine."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from escapement.errors import StorageError, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import (
    Connection,
    DuplicateKey,
    Engine,
    Step,
    TransactionAborted,
)
from escapement.storage.engine.open import open_engine
from escapement.storage.engine.result_buffer import Landing
from escapement.storage.engine.sqlite import SqliteEngine
from simulation.database import Server, SimulatedEngine

MIB = 1 << 20
INSERT = "INSERT INTO things (k, v) VALUES (?, ?)"


@pytest.fixture(params=["sqlite", "memory", "simulated", "mysql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine of each kind, including the databases in memory and of the simulation."""
    opened: Engine
    if request.param == "memory":
        opened = SqliteEngine.in_memory()
    elif request.param == "simulated":
        database = SqliteEngine(tmp_path / "log.sqlite3")
        server = Server(database, lambda: time.time_ns() // 1_000_000, random.Random(0))
        opened = SimulatedEngine(server)
    else:
        url = request.getfixturevalue("mysql_url") if request.param == "mysql" else None
        opened = open_engine(url, tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def one(engine: Engine) -> Iterator[Connection]:
    """A connection to a database with the tables of these tests."""
    connection = engine.connect()
    d = engine.dialect
    connection.execute(f"CREATE TABLE things (k BIGINT PRIMARY KEY, v BIGINT){d.table_end}")
    connection.execute(
        f"CREATE TABLE kinds ({d.id_column}, i BIGINT, f DOUBLE PRECISION, n {d.name}, "
        f"b {d.blob}){d.table_end}"
    )
    connection.execute(f"CREATE TABLE names (n {d.name} PRIMARY KEY){d.table_end}")
    yield connection
    connection.close()


@pytest.fixture
def two(engine: Engine, one: Connection) -> Iterator[Connection]:
    """Another connection to the same database."""
    connection = engine.connect()
    yield connection
    connection.close()


def things(connection: Connection) -> list[tuple[int, int]]:
    return [(k, v) for k, v in connection.execute("SELECT k, v FROM things ORDER BY k").rows]


def make_impatient(engine: Engine, connection: Connection) -> None:
    """Set the shortest lock wait that the database supports."""
    if engine.kind == "mysql":
        connection.execute("SET innodb_lock_wait_timeout = 1")
    else:
        connection.execute("PRAGMA busy_timeout = 20")


# -- values --------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 0, 1, -1, 2**63 - 1, -(2**63), True])
def test_integers_are_read_back_unchanged(one: Connection, value: int | None) -> None:
    made = one.execute("INSERT INTO kinds (i) VALUES (?)", (value,))
    assert one.execute("SELECT i FROM kinds WHERE id = ?", (made.last_id,)).rows == [(value,)]
    assert one.execute("SELECT i FROM kinds").rows == [(value,)]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_an_integer_past_64_bits_is_refused(one: Connection, value: int) -> None:
    with pytest.raises(OverflowError):
        one.execute("INSERT INTO kinds (i) VALUES (?)", (value,))


@pytest.mark.parametrize("value", [np.int64(5), np.array([5]), [5], object()])
def test_parameter_that_is_not_a_plain_value_fails_an_assertion(
    one: Connection, value: object
) -> None:
    with pytest.raises(AssertionError, match="plain"):
        one.execute("INSERT INTO kinds (i) VALUES (?)", (value,))


@pytest.mark.parametrize("value", [0.0, -1.5, 1e300, 0.1])
def test_floats_are_read_back_unchanged(one: Connection, value: float) -> None:
    one.execute("INSERT INTO kinds (f) VALUES (?)", (value,))
    assert one.execute("SELECT f FROM kinds WHERE f = ?", (value,)).rows == [(value,)]
    assert one.execute("SELECT f FROM kinds").rows == [(value,)]


@pytest.mark.parametrize(
    "text", ["", "plain", "it's", 'a "quote"', "back\\slash", "why?", "%s %d", "ß", "😀 😁", "a\0b"]
)
def test_text_is_read_back_unchanged(one: Connection, text: str) -> None:
    one.execute("INSERT INTO kinds (n) VALUES (?)", (text,))
    assert one.execute("SELECT n FROM kinds WHERE n = ?", (text,)).rows == [(text,)]
    assert one.execute("SELECT n FROM kinds").rows == [(text,)]


@pytest.mark.parametrize("size", [0, 1, 250, 251, 65_535, 65_536, 16 * MIB - 1, 20 * MIB])
def test_blobs_of_any_size_are_read_back_as_bytes(one: Connection, size: int) -> None:
    blob = (bytes(range(256)) * (size // 256 + 1))[:size]
    one.execute("INSERT INTO kinds (b) VALUES (?)", (blob,))
    ((back,),) = one.execute("SELECT b FROM kinds").rows
    assert type(back) is bytes
    assert back == blob
    assert one.execute("SELECT COUNT(*) FROM kinds WHERE b = ?", (blob,)).rows == [(1,)]


def test_long_rows_can_be_read_into_a_reusable_buffer(one: Connection) -> None:
    landing = Landing(MIB)
    for sizes in ([0, 70_000, 1, 700_000], [65_520, 65_536, 800_000, 2 * MIB], [17 * MIB, 9]):
        one.execute("DELETE FROM kinds WHERE id > ?", (0,))
        rows = [(n, f"\u00fc{n}", bytes([n]) * size, None) for n, size in enumerate(sizes)]
        one.begin()
        one.execute_many("INSERT INTO kinds (i, n, b, f) VALUES (?, ?, ?, ?)", rows)
        one.commit()
        sql = "SELECT i, n, b, f FROM kinds WHERE id > ? ORDER BY id"
        back = one.execute(sql, (0,), landing).rows
        assert [(i, n, bytes(b), f) for i, n, b, f in back] == rows
        landing.clear()


def test_every_bytes_like_value_is_stored_as_bytes(one: Connection) -> None:
    words = np.array([1, 2], "<u4")
    for value in (b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"a\x00\xffb")[1:3]):
        one.execute("INSERT INTO kinds (b) VALUES (?)", (value,))
    one.execute("INSERT INTO kinds (b) VALUES (?)", (memoryview(words),))
    back = [b for (b,) in one.execute("SELECT b FROM kinds ORDER BY id").rows]
    assert back == [b"\x00\xff"] * 3 + [words.tobytes()]


def test_nulls_are_read_back_in_their_columns(one: Connection) -> None:
    sql = "INSERT INTO kinds (i, f, n, b) VALUES (?, ?, ?, ?)"
    one.execute(sql, (None, 1.0, None, b"x"))
    one.execute(sql, (1, None, "n", None))
    expected = [(None, 1.0, None, b"x"), (1, None, "n", None)]
    assert (
        one.execute("SELECT i, f, n, b FROM kinds WHERE id > ? ORDER BY id", (0,)).rows == expected
    )
    assert one.execute("SELECT i, f, n, b FROM kinds ORDER BY id").rows == expected


def test_sums_and_counts_of_integers_are_integers(one: Connection) -> None:
    one.execute(INSERT, (1, 2**62))
    one.execute(INSERT, (2, 2**60))
    for sql, params in (
        ("SELECT SUM(v), COUNT(*), MAX(k) FROM things", ()),
        ("SELECT SUM(v), COUNT(*), MAX(k) FROM things WHERE k > ?", (0,)),
    ):
        (row,) = one.execute(sql, params).rows
        assert row == (2**62 + 2**60, 2, 2)
        assert all(type(value) is int for value in row)


def test_quotes_and_backslashes_mean_the_same_on_every_engine(one: Connection) -> None:
    assert one.execute("SELECT 'a\\b' || '\"'").rows == [('a\\b"',)]
    assert one.execute('SELECT "k" FROM "things"').rows == []


def test_database_clock_returns_utc_milliseconds(engine: Engine, one: Connection) -> None:
    before = time.time_ns() // 1_000_000
    ((now,),) = one.execute(f"SELECT {engine.dialect.now_ms}").rows
    after = time.time_ns() // 1_000_000
    assert type(now) is int
    assert before - 1 <= now <= after + 1


# -- keys ----------------------------------------------------------------------


def test_names_are_compared_byte_for_byte(one: Connection) -> None:
    names = ["a", "A", "a ", "a  ", "á", "a\u0301", "ä", "ß", "ss", "😀", "😁", ""]
    for name in names:
        one.execute("INSERT INTO names (n) VALUES (?)", (name,))
    for name in names:
        assert one.execute("SELECT n FROM names WHERE n = ?", (name,)).rows == [(name,)]
    in_order = [n for (n,) in one.execute("SELECT n FROM names ORDER BY n").rows]
    assert in_order == sorted(names, key=str.encode)


def test_a_name_may_have_255_characters_of_four_bytes(one: Connection) -> None:
    one.execute("INSERT INTO names (n) VALUES (?)", ("😀" * 255,))
    assert one.execute("SELECT n FROM names").rows == [("😀" * 255,)]


def test_a_duplicate_key_leaves_the_transaction_open(one: Connection, two: Connection) -> None:
    one.begin()
    one.execute(INSERT, (1, 1))
    with pytest.raises(DuplicateKey):
        one.execute(INSERT, (1, 2))
    one.execute(INSERT, (2, 2))
    one.commit()
    assert things(two) == [(1, 1), (2, 2)]


def test_insert_ignore_leaves_a_row_as_it_is(engine: Engine, one: Connection) -> None:
    sql = f"{engine.dialect.insert_ignore} INTO things (k, v) VALUES (?, ?)"
    assert one.execute(sql, (1, 1)).affected == 1
    assert one.execute(sql, (1, 2)).affected == 0
    assert things(one) == [(1, 1)]


def test_generated_ids_grow_and_are_not_reused(one: Connection) -> None:
    ids = []
    for _ in range(3):
        ids.append(one.execute("INSERT INTO kinds (i) VALUES (?)", (0,)).last_id)
        one.execute("DELETE FROM kinds WHERE id = ?", (ids[-1],))
    assert ids == sorted(set(ids))
    assert ids[0] > 0


def test_affected_counts_matching_rows_even_if_unchanged(one: Connection) -> None:
    one.execute(INSERT, (1, 5))
    one.execute(INSERT, (2, 6))
    assert one.execute("UPDATE things SET v = ?", (5,)).affected == 2
    assert one.execute("UPDATE things SET v = ? WHERE k = ?", (5, 9)).affected == 0
    assert one.execute("DELETE FROM things WHERE k < ?", (9,)).affected == 2


def test_refused_sql_raises_storage_error_and_keeps_the_connection(one: Connection) -> None:
    for params in ((), (1,)):
        with pytest.raises(StorageError) as caught:
            one.execute("SELECT nothing FROM nowhere" + (" WHERE a = ?" if params else ""), params)
        assert not caught.value.retryable
    assert things(one) == []


# -- transactions --------------------------------------------------------------


def test_committed_rows_are_visible_to_other_connections(one: Connection, two: Connection) -> None:
    one.begin()
    one.execute(INSERT, (1, 1))
    one.commit()
    assert things(two) == [(1, 1)]


def test_rollback_discards_all_changes(one: Connection, two: Connection) -> None:
    one.begin()
    one.execute(INSERT, (1, 1))
    one.rollback()
    one.rollback()
    assert things(two) == []
    one.begin()
    one.execute(INSERT, (2, 2))
    one.commit()
    assert things(two) == [(2, 2)]


def test_outside_a_transaction_each_statement_commits(one: Connection, two: Connection) -> None:
    one.begin()
    one.rollback()
    one.execute(INSERT, (1, 1))
    assert things(two) == [(1, 1)]
    two.execute("UPDATE things SET v = ? WHERE k = ?", (2, 1))
    assert things(one) == [(1, 2)]


def test_a_snapshot_sees_one_state_until_its_end(
    engine: Engine, one: Connection, two: Connection
) -> None:
    one.execute(INSERT, (1, 1))
    two.snapshot()
    if engine.location != "memory":  # in memory, writers wait for readers
        one.execute(INSERT, (2, 2))
        one.execute("UPDATE things SET v = ? WHERE k = ?", (3, 1))
    assert things(two) == [(1, 1)]
    assert two.execute("SELECT v FROM things WHERE k = ?", (1,)).rows == [(1,)]
    two.rollback()
    one.execute(INSERT, (4, 4))
    assert things(two) == things(one)
    two.begin()
    two.execute(INSERT, (5, 5))
    two.commit()
    assert (5, 5) in things(one)


def test_close_rolls_back_the_transaction(one: Connection, two: Connection) -> None:
    one.begin()
    one.execute(INSERT, (1, 1))
    one.close()
    one.close()
    two.begin()
    two.execute(INSERT, (1, 2))
    two.commit()
    assert things(two) == [(1, 2)]


def test_closed_connection_raises_unavailable_except_on_rollback(one: Connection) -> None:
    one.begin()
    assert not one.ended
    one.close()
    assert one.ended
    for use in (
        lambda: one.execute("SELECT 1"),
        lambda: one.execute(INSERT, (1, 1)),
        lambda: one.execute_many(INSERT, [(1, 1)]),
        lambda: one.execute_all([Step(INSERT, [(1, 1)])]),
        one.begin,
        one.commit,
    ):
        with pytest.raises(StorageUnavailable) as caught:
            use()
        assert caught.value.code == "storage_unavailable"
    one.rollback()


def test_misplaced_transaction_calls_fail_an_assertion(one: Connection) -> None:
    with pytest.raises(AssertionError):
        one.commit()
    with pytest.raises(AssertionError):
        one.execute_many(INSERT, [(1, 1)])
    with pytest.raises(AssertionError):
        one.execute_all([Step(INSERT, [(1, 1)])])
    one.begin()
    with pytest.raises(AssertionError):
        one.begin()


@pytest.mark.parametrize("lock", ["share_lock", "update_lock"])
def test_a_locked_row_cannot_be_changed(
    engine: Engine, one: Connection, two: Connection, lock: str
) -> None:
    one.execute(INSERT, (1, 1))
    make_impatient(engine, two)
    one.begin()
    one.execute(f"SELECT v FROM things WHERE k = ?{getattr(engine.dialect, lock)}", (1,))
    with pytest.raises(TransactionAborted) as caught:
        take_over(two)
    assert caught.value.retryable
    one.rollback()
    take_over(two)
    assert things(one) == [(1, 2)]


def take_over(connection: Connection) -> None:
    connection.begin()
    connection.execute("UPDATE things SET v = ? WHERE k = ?", (2, 1))
    connection.commit()


def test_aborted_transaction_is_rolled_back_and_can_be_retried(
    engine: Engine, one: Connection, two: Connection
) -> None:
    one.execute(INSERT, (1, 1))
    make_impatient(engine, two)
    one.begin()
    one.execute("UPDATE things SET v = ? WHERE k = ?", (10, 1))
    with pytest.raises(TransactionAborted):
        insert_and_take_over(two)
    two.rollback()
    one.commit()
    assert things(one) == [(1, 10)]
    insert_and_take_over(two)
    assert things(one) == [(1, 2), (7, 7)]


def insert_and_take_over(connection: Connection) -> None:
    connection.begin()
    connection.execute(INSERT, (7, 7))
    connection.execute("UPDATE things SET v = ? WHERE k = ?", (2, 1))
    connection.commit()


@pytest.mark.parametrize("engine", ["sqlite", "mysql"], indirect=True)
def test_reads_do_not_wait_for_a_writer_or_see_uncommitted_rows(
    one: Connection, two: Connection
) -> None:
    one.begin()
    one.execute(INSERT, (1, 1))
    assert things(two) == []
    one.commit()
    assert things(two) == [(1, 1)]


# -- many rows -----------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_execute_many_inserts_every_row(one: Connection, two: Connection, count: int) -> None:
    rows = [(k, -k) for k in range(count)]
    one.begin()
    assert one.execute_many(INSERT, rows) == count
    one.commit()
    assert things(two) == rows


def test_execute_many_accepts_large_and_small_rows_together(one: Connection) -> None:
    blobs = [bytes([n % 251]) * (2 * MIB if n % 50 == 0 else n) for n in range(200)]
    blobs[70] = b"z" * (17 * MIB)
    one.begin()
    assert one.execute_many("INSERT INTO kinds (i, b) VALUES (?, ?)", list(enumerate(blobs))) == 200
    one.commit()
    assert [b for (b,) in one.execute("SELECT b FROM kinds ORDER BY i").rows] == blobs


def test_execute_many_keeps_the_order_of_its_rows(one: Connection) -> None:
    one.begin()
    one.execute_many("REPLACE INTO things (k, v) VALUES (?, ?)", [(n % 3, n) for n in range(300)])
    one.commit()
    assert things(one) == [(0, 297), (1, 298), (2, 299)]
    one.begin()
    updates = [(n, n % 3) for n in range(300, 500)]
    assert one.execute_many("UPDATE things SET v = ? WHERE k = ?", updates) == 200
    one.commit()
    assert things(one) == [(0, 498), (1, 499), (2, 497)]


@pytest.mark.parametrize("at", [0, 63, 64, 150, 199])
def test_rollback_after_an_error_in_execute_many_discards_all_rows(
    one: Connection, at: int
) -> None:
    rows = [(k, k) for k in range(200)]
    rows[at] = (rows[at - 1][0], 0)
    one.begin()
    with pytest.raises(DuplicateKey):
        one.execute_many(INSERT, rows)
    one.rollback()
    assert things(one) == []
    one.begin()
    one.execute_many(INSERT, rows[: max(at, 1)])
    one.commit()
    assert len(things(one)) == max(at, 1)


@pytest.mark.parametrize("count", [0, 1, 64, 200])
def test_execute_all_runs_steps_in_order_and_returns_their_rows(
    one: Connection, two: Connection, count: int
) -> None:
    """Each step sees the changes of earlier steps, even across several round trips."""
    rows = [(k, -k) for k in range(count)]
    total = Step("SELECT COUNT(*), ? FROM things", [("first",)])
    one.begin()
    found = one.execute_all(
        [
            total,
            Step(INSERT, rows),
            total._replace(rows=[("then",)]),
            Step("UPDATE things SET v = ? WHERE k = ?", [(7, k) for k in range(count)]),
            Step("SELECT v, k FROM things WHERE k = ?", [(k,) for k in range(min(count, 3))]),
        ]
    )
    one.commit()
    assert found[:2] == [(0, "first"), (count, "then")]
    assert found[2:] == [(7, k) for k in range(min(count, 3))]
    assert things(two) == [(k, 7) for k in range(count)]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_rollback_after_an_error_in_execute_all_discards_all_steps(
    one: Connection, at: int
) -> None:
    one.execute(INSERT, (1, 1))
    steps = [
        Step("SELECT v FROM things WHERE k = ?", [(1,)]),
        Step(INSERT, [(2, 2), (3, 3)]),
        Step("UPDATE things SET v = ? WHERE k = ?", [(5, 1)]),
    ]
    one.begin()
    with pytest.raises(DuplicateKey):
        one.execute_all([*steps[:at], Step(INSERT, [(1, 2)]), *steps[at:]])
    one.rollback()
    assert things(one) == [(1, 1)]
    one.begin()
    assert one.execute_all(steps) == [(1,)]
    one.commit()
    assert things(one) == [(1, 5), (2, 2), (3, 3)]


def test_one_connection_runs_many_different_statements(one: Connection) -> None:
    one.execute(INSERT, (1, 1))
    for n in range(400):
        found = one.execute(f"SELECT v + {n} FROM things WHERE k = ?", (1,)).rows
        assert found == [(1 + n,)]


# -- refusals ------------------------------------------------------------------


def test_check_fitness_accepts_a_fit_database(engine: Engine) -> None:
    engine.check_fitness()
    engine.check_fitness()


def test_read_only_connection_refuses_writes_and_still_reads(
    engine: Engine, one: Connection
) -> None:
    one.execute(INSERT, (1, 1))
    read_only = "SET SESSION TRANSACTION READ ONLY"
    one.execute(read_only if engine.kind == "mysql" else "PRAGMA query_only = 1")
    with pytest.raises(StorageReadOnly):
        begin_and_insert(one)
    one.rollback()
    assert things(one) == [(1, 1)]


def begin_and_insert(connection: Connection) -> None:
    connection.begin()
    connection.execute(INSERT, (2, 2))


def test_killing_closed_connections_raises_no_error(engine: Engine, one: Connection) -> None:
    engine.kill([])
    engine.kill([one.id + 1_000_000, 2**31 - 1])
