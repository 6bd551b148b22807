"""MySQL connections that are lost, killed, frozen, over a limit or read-only."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from escapement.errors import (
    OutcomeUnknown,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
    UnfitDatabase,
)
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection, TransactionAborted
from escapement.storage.engine.kept_connection import KeptConnection
from escapement.storage.engine.mysql.binary import MAX_PREPARED
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.result_buffer import Landing
from support.database.servers import MysqlServer, SqlServer
from support.faults.tcp_proxy import LossyProxy, lossy_proxy

MIB = 1 << 20
INSERT = "INSERT INTO things (k, v) VALUES (?, ?)"


def engine_at(url: str) -> MysqlEngine:
    return MysqlEngine(MysqlAddress.parse(url))


def make_table(connection: Connection) -> None:
    connection.execute("CREATE TABLE things (k BIGINT PRIMARY KEY, v BIGINT) ENGINE=InnoDB")


def things(connection: Connection) -> list[tuple[int, int]]:
    return [(k, v) for k, v in connection.execute("SELECT k, v FROM things ORDER BY k").rows]


@pytest.fixture
def engine(mysql_url: str) -> MysqlEngine:
    return engine_at(mysql_url)


@pytest.fixture
def connect(engine: MysqlEngine) -> Iterator[Callable[[], Connection]]:
    """Make connections that are closed after the test. The table exists."""
    with contextlib.ExitStack() as stack:

        def connect() -> Connection:
            connection = engine.connect()
            stack.callback(connection.close)
            return connection

        make_table(connect())
        yield connect


# -- the wire ------------------------------------------------------------------


@pytest.mark.parametrize("over", [-1, 0, 1])
@pytest.mark.parametrize("packets", [1, 2])
def test_parameter_may_end_at_a_packet_boundary(
    connect: Callable[[], Connection], packets: int, over: int
) -> None:
    head = 10 + 1 + 1 + 2  # the header of COM_STMT_EXECUTE with one parameter
    length = packets * 0xFFFFFF + over - head
    length -= 4 if length < 1 << 24 else 9
    blob = bytes(length)
    assert connect().execute("SELECT LENGTH(?), 7", (blob,)).rows == [(length, 7)]


def test_parameter_over_max_allowed_packet_is_refused_before_sending(
    connect: Callable[[], Connection],
) -> None:
    one = connect()
    ((limit,),) = one.execute("SELECT @@max_allowed_packet").rows
    with pytest.raises(StorageError, match="max_allowed_packet") as caught:
        one.execute("SELECT LENGTH(?)", (bytes(limit),))
    assert not caught.value.retryable
    assert things(one) == []


def test_prepared_statements_are_bounded(connect: Callable[[], Connection]) -> None:
    one = connect()

    def prepared() -> int:
        count: int = one.execute("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").rows[0][1]
        return int(count)

    before = prepared()
    for n in range(MAX_PREPARED + 50):
        one.execute(f"SELECT {n} + ?", (1,))
    assert prepared() - before <= MAX_PREPARED


def test_every_numeric_column_type_is_read(connect: Callable[[], Connection]) -> None:
    one = connect()
    one.execute(
        "CREATE TABLE numbers (a TINYINT, b SMALLINT UNSIGNED, c MEDIUMINT, d INT UNSIGNED, "
        "e BIGINT UNSIGNED, f FLOAT, g DECIMAL(5, 2), h DECIMAL(20, 0), i BINARY(2), j CHAR(3))"
    )
    row = (-128, 65535, -8388608, 2**32 - 1, 2**63, 0.5, 1.25, 10**19, b"\xff\x00", "abc")
    one.execute(
        "INSERT INTO numbers VALUES (?, ?, ?, ?, 9223372036854775808, ?, ?, "
        "10000000000000000000, ?, ?)",
        (*row[:4], *row[5:7], *row[8:]),
    )
    assert one.execute("SELECT * FROM numbers").rows == [row]
    assert one.execute("SELECT * FROM numbers WHERE a < ?", (0,)).rows == [row]


def test_datetime_column_fails_an_assertion_and_closes_the_connection(
    connect: Callable[[], Connection],
) -> None:
    """The reply is not read to the end, so the connection cannot be used again."""
    one = connect()
    with pytest.raises(AssertionError, match="moment"):
        one.execute("SELECT NOW() AS moment FROM (SELECT 1 AS a) AS t WHERE a = ?", (1,))
    with pytest.raises(StorageUnavailable):
        one.execute("SELECT 1")


# -- locks ---------------------------------------------------------------------


def test_lanes_share_the_lock_of_their_lease(connect: Callable[[], Connection]) -> None:
    lanes = [connect(), connect()]
    lanes[0].execute(INSERT, (1, 1))
    for lane in lanes:
        lane.begin()
        assert lane.execute("SELECT v FROM things WHERE k = ? LOCK IN SHARE MODE", (1,)).rows
    for lane in lanes:
        lane.commit()


def test_locking_read_sees_the_newest_epoch_in_an_old_transaction(
    connect: Callable[[], Connection],
) -> None:
    old, newer = connect(), connect()
    old.execute(INSERT, (1, 1))
    old.begin()
    assert things(old) == [(1, 1)]
    newer.execute("UPDATE things SET v = ? WHERE k = ?", (2, 1))
    assert old.execute("SELECT v FROM things WHERE k = ? LOCK IN SHARE MODE", (1,)).rows == [(2,)]
    old.rollback()


def test_rows_sent_after_a_deadlock_are_not_committed(
    connect: Callable[[], Connection],
) -> None:
    """``execute_many`` sends its rows before it reads the reply that reports the deadlock."""
    heavy, light, observer = connect(), connect(), connect()
    heavy.begin()
    heavy.execute_many(INSERT, [(k, 0) for k in range(1000, 2000)])  # so the other is the victim
    heavy.execute(INSERT, (1, 1))
    light.begin()
    light.execute(INSERT, (2, 2))
    # heavy waits for a row of light. As soon as light requests a row of heavy, they deadlock.
    waiting = threading.Thread(target=heavy.execute, args=(INSERT, (2, 3)))
    waiting.start()
    lock_waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
    while waiting.is_alive() and observer.execute(lock_waits).rows[0][1] == "0":
        pass
    with pytest.raises(TransactionAborted):
        light.execute_many(INSERT, [(1, 9), (3000, 9), (3001, 9)])
    waiting.join()
    heavy.commit()
    assert [k for k, v in things(observer) if v] == [1, 2]


def test_lock_waits_of_many_rows_do_not_add_up(
    connect: Callable[[], Connection],
) -> None:
    holder, waiter = connect(), connect()
    waiter.execute("SET innodb_lock_wait_timeout = 1")
    holder.begin()
    holder.execute_many(INSERT, [(k, 0) for k in range(30)])
    waiter.begin()
    with pytest.raises(TransactionAborted):
        waiter.execute_many(INSERT, [(k, 1) for k in range(30)])
    with pytest.raises(StorageUnavailable):
        waiter.begin()
    holder.commit()
    assert things(holder) == [(k, 0) for k in range(30)]


# -- connections lost ----------------------------------------------------------


def test_killed_connection_raises_unavailable_and_is_rolled_back(
    engine: MysqlEngine, connect: Callable[[], Connection]
) -> None:
    one, two = connect(), connect()
    one.begin()
    one.execute(INSERT, (1, 1))
    engine.kill([one.id])
    with pytest.raises(StorageUnavailable) as caught:
        one.execute(INSERT, (2, 2))
    assert caught.value.code == "storage_unavailable"
    one.rollback()
    assert things(two) == []


def test_kept_connection_that_the_server_has_closed_is_replaced(engine: MysqlEngine) -> None:
    kept = KeptConnection(engine)
    with kept.use() as connection:
        assert not connection.ended
        first = connection.id
        make_table(connection)
    with kept.use() as connection:
        assert connection.id == first
    engine.kill([first])
    with kept.use() as connection:
        assert connection.id != first
        assert things(connection) == []
    kept.close()


def test_statement_killed_while_running_raises_unavailable(
    engine: MysqlEngine, connect: Callable[[], Connection]
) -> None:
    one = connect()
    mark = "SELECT SLEEP(?)"
    errors: list[Exception] = []

    def sleep() -> None:
        try:
            one.execute(mark, (25,))
        except StorageError as error:
            errors.append(error)

    sleeping = threading.Thread(target=sleep)
    sleeping.start()
    busy = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ? AND STATE LIKE 'User%'"
    watcher = connect()
    while sleeping.is_alive() and watcher.execute(busy, (one.id,)).rows == [(0,)]:
        pass
    engine.kill([one.id])
    sleeping.join()
    assert [type(error) for error in errors] == [StorageUnavailable]


def test_kill_spares_connections_to_other_databases(
    mysql_server: SqlServer, mysql_url: str, engine: MysqlEngine
) -> None:
    """A server restart resets connection ids, so an old id may belong to another client."""
    stranger = engine_at(mysql_server.url("information_schema")).connect()
    engine.kill([stranger.id])
    assert stranger.execute("SELECT 1").rows == [(1,)]
    stranger.close()


def test_kill_spares_the_connection_that_kills(
    engine: MysqlEngine, connect: Callable[[], Connection]
) -> None:
    """After a restart of the server, a recorded id may be that of the connection that kills."""
    one = connect()
    # Connections of other tests may take some of the next ids.
    engine.kill(range(one.id + 1, one.id + 100))
    assert one.execute("SELECT 1").rows == [(1,)]


@pytest.fixture
def proxied(mysql_to_break: MysqlServer) -> Iterator[tuple[LossyProxy, MysqlEngine, MysqlEngine]]:
    """A proxy, an engine that connects through it, and an engine that connects directly."""
    with lossy_proxy(mysql_to_break.port) as proxy:
        through = engine_at(mysql_to_break.url("proxied", port=proxy.port))
        yield proxy, through, engine_at(mysql_to_break.url("proxied"))
    mysql_to_break.admin("DROP DATABASE IF EXISTS proxied")


@pytest.mark.parametrize("arrived", [True, False])
def test_commit_without_a_reply_raises_outcome_unknown(
    proxied: tuple[LossyProxy, MysqlEngine, MysqlEngine], arrived: bool
) -> None:
    proxy, through, straight = proxied
    one, two = through.connect(), straight.connect()
    make_table(two)
    one.begin()
    one.execute(INSERT, (1, 1))
    (proxy.lose_reply if arrived else proxy.lose_request)(b"COMMIT")
    with pytest.raises(OutcomeUnknown):
        one.commit()
    with pytest.raises(StorageUnavailable):
        one.begin()
    # The transaction of the lost connection may stay open until the server notices.
    straight.kill([one.id])
    two.begin()
    found = two.execute("SELECT k FROM things FOR UPDATE").rows
    assert found == ([(1,)] if arrived else [])
    two.close()


@pytest.mark.parametrize("arriving_bytes", [0, 300, 500_000])
def test_connection_lost_inside_a_long_row_cannot_be_used_again(
    proxied: tuple[LossyProxy, MysqlEngine, MysqlEngine], arriving_bytes: int
) -> None:
    proxy, through, _ = proxied
    one, landing = through.connect(), Landing(MIB)
    sql, size = "SELECT CAST(REPEAT('x', ?) AS BINARY), ?", 900_000
    assert bytes(one.execute(sql, (size, "whole"), landing).rows[0][0]) == b"x" * size
    landing.clear()
    proxy.lose_reply(b"marked", arriving_bytes)
    with pytest.raises(StorageUnavailable):
        one.execute(sql, (size, "marked"), landing)
    with pytest.raises(StorageUnavailable):
        one.execute("SELECT 1")


@pytest.mark.parametrize("end", [MysqlServer.stop, MysqlServer.kill])
def test_restarted_server_has_only_committed_rows(
    mysql_to_break: MysqlServer, end: Callable[[MysqlServer], None]
) -> None:
    engine = engine_at(mysql_to_break.url("restarted"))
    one = engine.connect()
    make_table(one)
    one.execute(INSERT, (1, 1))
    one.begin()
    one.execute(INSERT, (2, 2))
    end(mysql_to_break)
    with pytest.raises(StorageUnavailable):
        one.execute(INSERT, (3, 3))
    with pytest.raises(StorageUnavailable):
        engine.connect()
    mysql_to_break.start()
    two = engine.connect()
    assert things(two) == [(1, 1)]
    two.close()
    mysql_to_break.admin("DROP DATABASE restarted")


def test_hanging_server_raises_unavailable(mysql_to_break: MysqlServer) -> None:
    url = mysql_to_break.url("frozen")
    patient = engine_at(url + "?read_timeout=1")
    one, two = patient.connect(), patient.connect()
    two.begin()
    mysql_to_break.pause()
    with pytest.raises(StorageUnavailable):
        one.execute("SELECT 1")
    with pytest.raises(OutcomeUnknown):
        two.commit()
    with pytest.raises(StorageUnavailable):
        engine_at(url + "?connect_timeout=1").connect()
    mysql_to_break.resume()
    patient.connect().close()
    mysql_to_break.admin("DROP DATABASE frozen")


def test_connection_over_the_limit_of_its_user_raises_unavailable(
    mysql_to_break: MysqlServer,
) -> None:
    with user_of(mysql_to_break, "crowded", "GRANT ALL ON crowded.* TO {} ") as url:
        mysql_to_break.admin("ALTER USER somebody@'127.0.0.1' WITH MAX_USER_CONNECTIONS 1")
        only = engine_at(url).connect()
        with pytest.raises(StorageUnavailable):
            engine_at(url).connect()
        only.close()


# -- users and rights ----------------------------------------------------------


@contextlib.contextmanager
def user_of(server: MysqlServer, database: str, *grants: str) -> Iterator[str]:
    """The URL of ``database`` for an ordinary user with these rights."""
    server.admin("CREATE USER somebody@'127.0.0.1' IDENTIFIED BY 'pä:ss/w@rd'")
    for grant in grants:
        server.admin(grant.format("somebody@'127.0.0.1'"))
    try:
        yield server.url(database, user="somebody", password="pä:ss/w@rd")
    finally:
        server.admin("DROP USER somebody@'127.0.0.1'")
        server.admin(f"DROP DATABASE IF EXISTS {database}")


def test_a_read_only_server_refuses_writes_until_it_is_writable_again(
    mysql_to_break: MysqlServer,
) -> None:
    with user_of(mysql_to_break, "readable", "GRANT ALL ON readable.* TO {}") as url:
        one = engine_at(url).connect()
        make_table(one)
        one.execute(INSERT, (1, 1))
        mysql_to_break.admin("SET GLOBAL read_only = 1")
        one.begin()
        with pytest.raises(StorageReadOnly):
            one.execute(INSERT, (2, 2))
        one.rollback()
        assert things(one) == [(1, 1)]
        mysql_to_break.admin("SET GLOBAL read_only = 0")
        one.begin()
        one.execute(INSERT, (3, 3))
        mysql_to_break.admin("SET GLOBAL read_only = 1")
        with pytest.raises(StorageReadOnly):
            one.commit()
        one.rollback()
        mysql_to_break.admin("SET GLOBAL read_only = 0")
        assert things(one) == [(1, 1)]
        one.close()


def test_a_missing_database_is_created(mysql_server: SqlServer) -> None:
    engine = engine_at(mysql_server.url("escapement%60test%20made"))
    one = engine.connect()
    assert one.execute("SELECT DATABASE()").rows == [("escapement`test made",)]
    one.execute("DROP DATABASE `escapement``test made`")
    one.close()


def test_error_for_missing_privileges_says_what_to_do(mysql_to_break: MysqlServer) -> None:
    with user_of(mysql_to_break, "forbidden") as url:
        with pytest.raises(StorageError, match="GRANT") as caught:
            engine_at(url).connect()
        assert not caught.value.retryable
        with pytest.raises(StorageError, match="check user, password") as caught:
            engine_at(url.replace("rd@", "rx@")).connect()
        assert not caught.value.retryable
        for secret in ("pä:ss", "p%C3%A4"):
            assert secret not in str(caught.value)


def test_refused_connection_raises_unavailable(mysql_to_break: MysqlServer) -> None:
    url = mysql_to_break.url("away")
    mysql_to_break.stop()
    with pytest.raises(StorageUnavailable, match="away"):
        engine_at(url).connect()


# -- fitness -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "bad", "says", "error"),
    [
        ("read_only", "1", "takes no writes", StorageReadOnly),
        ("default_storage_engine", "MyISAM", "InnoDB", UnfitDatabase),
        ("max_allowed_packet", "1048576", "SET GLOBAL max_allowed_packet", UnfitDatabase),
    ],
)
def test_an_unfit_server_is_refused_with_the_reason(
    mysql_to_break: MysqlServer, variable: str, bad: str, says: str, error: type[StorageError]
) -> None:
    engine = engine_at(mysql_to_break.url("unfit"))
    engine.check_fitness()
    ((good,),) = mysql_to_break.admin(f"SELECT @@GLOBAL.{variable}")
    mysql_to_break.admin(f"SET GLOBAL {variable} = {bad}")
    try:
        with pytest.raises(error, match=says):
            engine.check_fitness()
    finally:
        mysql_to_break.admin(f"SET GLOBAL {variable} = {good}")
    engine.check_fitness()
    mysql_to_break.admin("DROP DATABASE unfit")


def test_a_table_without_transactions_makes_the_database_unfit(
    engine: MysqlEngine, connect: Callable[[], Connection]
) -> None:
    connect().execute("ALTER TABLE things ENGINE=MyISAM")
    with pytest.raises(UnfitDatabase, match="ALTER TABLE things ENGINE=InnoDB"):
        engine.check_fitness()


def test_weak_durability_logs_a_warning(
    mysql_to_break: MysqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_at(mysql_to_break.url("weak"))
    mysql_to_break.admin("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        with caplog.at_level(logging.WARNING):
            engine.check_fitness()
    finally:
        mysql_to_break.admin("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert "innodb_flush_log_at_trx_commit is 2" in caplog.text
    mysql_to_break.admin("DROP DATABASE weak")
