"""The MySQL and MariaDB engine: a database on a server.

This module owns the settings of a connection, and the order of begin, commit and rollback on it. It
knows no tables. Statements with parameters use MySQL's binary protocol (``binary.py``); the
few others are sent as text.

Invariants:

- A transaction that writes is opened by ``autocommit=0``, never by BEGIN. Several statements may be
  sent before the reply to the first one. If the server rolls back the transaction at one of them
  (a deadlock), those after it run in a new transaction. With ``autocommit=0`` that is rolled back
  too, instead of being committed statement by statement.
- When a connection raises ``StorageUnavailable`` or ``OutcomeUnknown``, its socket is closed, and
  the server rolls back the open transaction.
- The isolation level is READ COMMITTED, except for snapshots: every read sees the newest committed
  rows, and locking reads lock rows but not the gaps between them. A row that was read with ``LOCK
  IN SHARE MODE`` cannot change until the transaction ends, and the read returns its newest state
  however long ago the transaction began.
- SQL text means the same as on SQLite: double quotes quote names, a backslash has no special
  meaning in a string, ``||`` joins strings, an UPDATE counts the rows it matched, time is UTC.
"""

from __future__ import annotations

import contextlib
import math
import select
import ssl
from collections.abc import Iterator, Sequence
from typing import Final

import pymysql
from pymysql.connections import Connection as Wire

from escapement.errors import (
    OutcomeUnknown,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
)
from escapement.event_log import EventLog
from escapement.identifier import quoted
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import (
    Dialect,
    Params,
    Result,
    Row,
    Step,
    TransactionAborted,
)
from escapement.storage.engine.mysql import errors as mysql_errors
from escapement.storage.engine.mysql.binary import PreparedStatements
from escapement.storage.engine.mysql.fitness import check_fitness
from escapement.storage.engine.mysql.wire import dial
from escapement.storage.engine.result_buffer import Landing

_log = EventLog(__name__)

# A *lane* writes one transaction after the other on its own connection. While one lane waits for
# the disk, others prepare transactions, and the server combines their fsyncs.
MAX_LANES: Final = 8
# How long to wait for a row lock. Our own transactions keep row locks only until their commit. A
# lane waits while it locks the lease row itself, so a longer wait would delay the renewal.
ROW_LOCK_WAIT_S: Final = 1
# How long to wait for a table lock. A long statement may delay it, but the wait must end before the
# connection's read timeout.
TABLE_LOCK_WAIT_S: Final = 20

DIALECT: Final = Dialect(
    id_column="id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    share_lock=" LOCK IN SHARE MODE",
    update_lock=" FOR UPDATE",
    blob="LONGBLOB",
    # A "nopad" collation compares trailing spaces too, which utf8mb4_bin ignores. It has different
    # names on MariaDB and MySQL, and each server reads only its own of these two comments.
    name=(
        "VARCHAR(255) CHARACTER SET utf8mb4 "
        "COLLATE /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */"
    ),
    inner_index=True,
    table_end=" ENGINE=InnoDB DEFAULT CHARACTER SET utf8mb4",
    now_ms="CAST(ROUND(UNIX_TIMESTAMP(NOW(3)) * 1000) AS SIGNED)",
    insert_ignore="INSERT IGNORE",
    may_be_silent="SET SESSION wait_timeout = @@global.wait_timeout",
)

# By this mode our SQL text means the same as on SQLite.
SQL_MODE: Final = (
    "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,"
    "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT"
)
_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    f"SET autocommit = 1, time_zone = '+00:00', sql_mode = '{SQL_MODE}', "
    f"innodb_lock_wait_timeout = {ROW_LOCK_WAIT_S}, lock_wait_timeout = {TABLE_LOCK_WAIT_S}",
)


class MysqlEngine:
    """One database on a MySQL or MariaDB server."""

    kind: Final = "mysql"
    is_shared: Final = True
    dialect: Final = DIALECT
    lock_wait_s: Final = ROW_LOCK_WAIT_S
    max_lanes: Final = MAX_LANES

    def __init__(
        self, address: MysqlAddress, creates: bool = True, silence_s: float | None = None
    ) -> None:
        """Create an engine, without connecting.

        Args:
          creates: let ``connect`` create the database if it does not exist.
          silence_s: as for :meth:`limited`.
        """
        self._address = address
        self._creates = creates
        self._silence_s = silence_s
        self.location = str(address)

    def connect(self) -> MysqlConnection:
        try:
            wire = dial(self._address, self._address.database)
        except pymysql.err.MySQLError as error:
            missing = mysql_errors.number_of(error) == mysql_errors.UNKNOWN_DATABASE
            if not (missing and self._creates):
                raise self._refused(error) from error
            self._create_database()
            try:
                wire = dial(self._address, self._address.database)
            except pymysql.err.MySQLError as again:
                raise self._refused(again) from again
        return MysqlConnection(wire, self.location, self._silence_s)

    def limited(self, silence_s: float) -> MysqlEngine:
        return MysqlEngine(self._address, self._creates, silence_s)

    def check_fitness(self) -> None:
        with contextlib.closing(self.connect()) as connection:
            check_fitness(connection, self.location)

    def kill(self, connection_ids: Sequence[int]) -> None:
        """Kill those of the given connections that use this database.

        A server that restarts counts its connection ids from the beginning again. So an id from
        before a restart may belong to another client, or to the connection of this method, which
        is not killed.
        """
        with contextlib.closing(self.connect()) as connection:
            for id in connection_ids:
                if id == connection.id:
                    continue
                found = connection.execute(
                    "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = ? AND DB = DATABASE()",
                    (id,),
                )
                if found.rows:
                    connection.kill(id)

    def close(self) -> None:
        """Do nothing: the engine holds no resources."""

    def _create_database(self) -> None:
        name = quoted(self._address.database)
        try:
            with contextlib.closing(dial(self._address, None)) as wire:
                wire.query(f"CREATE DATABASE IF NOT EXISTS {name} CHARACTER SET utf8mb4")
        except pymysql.err.MySQLError as error:
            kind = type(mysql_errors.translated(error, self.location))
            raise kind(
                f"{self.location}: the database does not exist and cannot be created "
                f"({error.args[-1]}); create it with CREATE DATABASE {name} CHARACTER SET utf8mb4"
            ) from error
        _log.info(
            "database.created", "created the database %s", self.location, database=self.location
        )

    def _refused(self, error: pymysql.err.MySQLError) -> StorageError:
        """Return an error that says why connecting failed, and what to do about it."""
        code = mysql_errors.number_of(error)
        if code in mysql_errors.ACCESS_DENIED:
            return StorageError(
                f"{self.location}: the server refuses this user; "
                f"check user, password and host ({error.args[-1]})"
            )
        if code == mysql_errors.DATABASE_DENIED:
            return StorageError(
                f"{self.location}: the user has no right to this database; GRANT SELECT ON "
                f"{quoted(self._address.database)}.* TO it (the log of a broker also needs INSERT, "
                f"UPDATE and DELETE), and CREATE the database first if it is missing "
                f"({error.args[-1]})"
            )
        cause = getattr(error, "original_exception", None)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return StorageError(
                f"{self.location}: the server's certificate is not trusted; name its authority "
                f"with ssl_ca, and the host as in the certificate ({cause.verify_message})"
            )
        return mysql_errors.translated(error, self.location)


class MysqlConnection:
    """A connection to a server, with its prepared statements and its open transaction."""

    def __init__(self, wire: Wire, location: str, silence_s: float | None = None) -> None:
        self._wire = wire
        self._location = location
        self._silence_s = silence_s  # the limit that the server does not know yet
        self._in_transaction = False
        self._autocommit = True
        with self._guarded():
            for setting in _SETTINGS:
                wire.query(setting)
        row = self._text("SELECT CONNECTION_ID(), @@max_allowed_packet").rows[0]
        self.id: int = row[0]
        self._statements = PreparedStatements(wire, limit_bytes=row[1])

    def execute(self, sql: str, params: Params = (), into: Landing | None = None) -> Result:
        self._set_autocommit(not self._in_transaction)
        if not params:
            return self._text(sql)
        with self._guarded():
            return self._statements.execute(sql, params, into)

    def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        assert self._in_transaction or self._lost, "execute_many outside a transaction"
        with self._guarded():
            return self._statements.execute_all([Step(sql, rows)]).affected

    def execute_all(self, steps: Sequence[Step]) -> list[Row]:
        assert self._in_transaction or self._lost, "execute_all outside a transaction"
        with self._guarded():
            return self._statements.execute_all(steps).rows

    def begin(self) -> None:
        assert not self._in_transaction or self._lost, "begin inside a transaction"
        with self._guarded():  # raises if the connection is lost, even if autocommit is off already
            if self._silence_s is not None:
                self._text(f"SET SESSION wait_timeout = {math.ceil(self._silence_s):d}")
                self._silence_s = None
            self._set_autocommit(False)
        self._in_transaction = True

    def snapshot(self) -> None:
        assert not self._in_transaction or self._lost, "snapshot inside a transaction"
        with self._guarded():
            self._set_autocommit(False)
        self._text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._text("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        self._in_transaction = True

    def commit(self) -> None:
        assert self._in_transaction or self._lost, "commit without a transaction"
        lost_before = self._lost
        try:
            self._text("COMMIT")
        except (StorageReadOnly, TransactionAborted):
            raise
        except StorageError as error:
            self.close()
            if lost_before:
                raise
            raise OutcomeUnknown(f"COMMIT got no answer: {error}") from error
        self._in_transaction = False

    def rollback(self) -> None:
        if self._in_transaction and not self._lost:
            try:
                self._wire.query("ROLLBACK")
            except (pymysql.err.MySQLError, OSError):
                self.close()
        self._in_transaction = False

    @property
    def ended(self) -> bool:
        if self._lost:
            return True
        # Between two statements, a server sends only the end of the connection, or an error before.
        poller = select.poll()
        poller.register(self._wire._sock, select.POLLIN)
        return bool(poller.poll(0))

    def close(self) -> None:
        self._in_transaction = False
        if self._wire.open:
            self._wire.close()

    def kill(self, id: int) -> None:
        """Kill the connection ``id`` if it exists and this user may kill it."""
        try:
            self._wire.query(f"KILL CONNECTION {id:d}")
        except pymysql.err.MySQLError as error:
            code = mysql_errors.number_of(error)
            if code == mysql_errors.KILL_DENIED:
                _log.warning(
                    "database.kill_denied",
                    "%s: connection %d is another user's",
                    self._location,
                    id,
                    database=self._location,
                    mysql_connection=id,
                )
            elif code != mysql_errors.NO_SUCH_THREAD:
                raise mysql_errors.translated(error, self._location) from error

    @property
    def _lost(self) -> bool:
        return not self._wire.open

    def _text(self, sql: str) -> Result:
        with self._guarded():
            affected = self._wire.query(sql)
            result = self._wire._result
            if result.rows is not None:
                return Result(list(result.rows), 0, 0)
            return Result([], affected, result.insert_id)

    def _set_autocommit(self, wanted: bool) -> None:
        if wanted != self._autocommit:
            self._text(f"SET autocommit = {wanted:d}")
            self._autocommit = wanted

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Translate errors of PyMySQL in the ``with`` block into those that ``base.py`` lists.

        Rolls back or closes the connection, as ``base.py`` says for the error.
        """
        if self._lost:
            raise StorageUnavailable(f"{self._location}: the connection is closed")
        try:
            yield
        except (pymysql.err.MySQLError, OSError) as error:
            ours = mysql_errors.translated(error, self._location)
            if isinstance(ours, TransactionAborted):
                self.rollback()
            elif isinstance(ours, StorageUnavailable) and not isinstance(ours, StorageReadOnly):
                self.close()
            raise ours from error
        except StorageError:
            raise
        except BaseException:
            # The reply to this statement may still come, and the next statement would read it.
            self.close()
            raise
