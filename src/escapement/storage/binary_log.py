"""Reads the binary log of a MySQL or MariaDB server, to learn at once that rows were inserted.

The server writes each committed transaction into its *binary log*, and sends it to replicas. The
reader asks for it like a replica, with the package mysql-replication. It reports the table of each
INSERT. It skips the values of rows, and UPDATE and DELETE, which the broker executes all the time
itself.

Callers must not rely on the reports: the reader begins at the end of the log, and reports of a
transaction may come a moment before its rows can be read.
"""

from __future__ import annotations

import importlib.util
import logging
import secrets
import socket
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from pymysql.connections import Connection as Wire

from escapement.errors import InvalidRequest, StorageError, StorageUnavailable
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection
from escapement.storage.engine.mysql import errors as mysql_errors
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.mysql.wire import TlsIfOffered, wire_settings

if TYPE_CHECKING:
    from pymysqlreplication import BinLogStreamReader

_PACKAGE: Final = "pymysqlreplication"
# The server sends a sign of life after this time without a transaction.
_HEARTBEAT_S: Final = 10
# The server ends the stream of another replica with the same id. So each reader takes one at random
# from the upper half, because people count from 1.
_IDS: Final = 1 << 31
# The values of a server's variables without which no INSERT can be recognised, with the statement
# that sets each. A server has those that it knows.
_NEEDED: Final = {
    "log_bin": ("ON", "start the server with --log-bin"),
    "binlog_format": ("ROW", "SET GLOBAL binlog_format = 'ROW'"),
    "log_bin_compress": ("OFF", "SET GLOBAL log_bin_compress = OFF"),
    "binlog_transaction_compression": ("OFF", "SET GLOBAL binlog_transaction_compression = OFF"),
}


def check_package() -> None:
    """Check that the package mysql-replication is installed.

    Raises:
      InvalidRequest: if it is not.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise InvalidRequest(
            "The binary log cannot be read without the package mysql-replication. Install it with:"
            " pip install 'escapement[binlog]'"
        )


class BinaryLog:
    """The binary log of one server.

    Args:
      address: the server, and a user with the rights to read its binary log.
      databases: the databases whose tables are reported.
    """

    def __init__(self, address: MysqlAddress, databases: Collection[str]) -> None:
        self._address = address
        self._databases = sorted(databases)
        self._wires: list[Wire] = []
        self._closed = False

    @property
    def location(self) -> str:
        """The address of the server for log lines."""
        return str(self._address).rpartition("/")[0]

    def read(self, inserted: Callable[[str, str], None]) -> None:
        """Report each INSERT from now on. Blocks until an error, or until ``close``.

        Args:
          inserted: called with the database and the table; several times for a long transaction.

        Raises:
          StorageUnavailable: always, with the reason why reading has ended.
        """
        try:
            with closing(MysqlEngine(self._address, creates=False).connect()) as connection:
                _check_settings(connection, self.location)
            self._read(inserted)
        except StorageError as error:
            raise StorageUnavailable(str(error)) from error
        # The package raises errors of all kinds for events that it does not understand.
        except Exception as error:
            raise StorageUnavailable(f"{self.location}: {self._reason(error)}") from error
        finally:
            self._hang_up()
        raise StorageUnavailable(f"{self.location}: the server has ended the stream")

    def close(self) -> None:
        """End ``read``, which another thread executes."""
        self._closed = True
        self._hang_up()

    def _read(self, inserted: Callable[[str, str], None]) -> None:
        from pymysqlreplication.row_event import WriteRowsEvent

        stream = self._stream([WriteRowsEvent])
        try:
            for event in stream:
                inserted(event.schema, event.table)
        finally:
            stream.close()

    def _stream(self, events: list[type]) -> BinLogStreamReader:
        from pymysqlreplication import BinLogStreamReader

        # The package warns of settings that matter only for values of rows.
        logging.getLogger(_PACKAGE).setLevel(logging.ERROR)
        settings = wire_settings(self._address)
        settings["read_timeout"] = settings["write_timeout"] = self._address.read_timeout
        return BinLogStreamReader(
            settings,
            _IDS + secrets.randbelow(_IDS),
            resume_stream=True,  # from the end of the log, not from its beginning
            blocking=True,
            only_events=events,
            only_schemas=self._databases,
            freeze_schema=True,  # skips the definitions of tables that are known
            slave_heartbeat=_HEARTBEAT_S,
            enable_logging=False,
            pymysql_wrapper=self._dial,
        )

    def _dial(self, **settings: Any) -> Wire:
        if self._closed:
            raise StorageUnavailable(f"{self.location}: the reader was closed")
        if "db" in settings:  # a deprecated name, which the package uses
            settings["database"] = settings.pop("db")
        wire = TlsIfOffered(**settings)
        self._wires = [one for one in self._wires if one.open] + [wire]
        if self._closed:  # meanwhile, when ``close`` could not find this connection
            self._hang_up()
            raise StorageUnavailable(f"{self.location}: the reader was closed")
        return wire

    def _reason(self, error: Exception) -> str:
        if mysql_errors.number_of(error) == mysql_errors.REPLICATION_DENIED:
            return (
                "the user may not read the binary log; "
                f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {self._address.user}"
            )
        return str(error) or type(error).__name__

    def _hang_up(self) -> None:
        """Close the connections, also while a thread reads from one of them."""
        for wire in self._wires:
            with suppress(OSError, AttributeError):  # closed already
                wire._sock.shutdown(socket.SHUT_RDWR)


def _check_settings(connection: Connection, location: str) -> None:
    names = ", ".join(f"'{name}'" for name in _NEEDED)
    found = connection.execute(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    for name, value in found.rows:
        needed, remedy = _NEEDED[name]
        if value.upper() != needed:
            raise StorageUnavailable(f"{location}: {name} is not {needed}; {remedy}")
