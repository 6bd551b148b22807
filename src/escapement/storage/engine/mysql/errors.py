"""Translation of MySQL and MariaDB error numbers into the errors that ``base.py`` lists.

A number that is in none of the tables below becomes a ``StorageError``: the server refused the
statement, and the connection and its transaction are unchanged.
"""

from __future__ import annotations

from typing import Final

import pymysql

from escapement.errors import StorageError, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import DuplicateKey, NoConnectionLeft, TransactionAborted

LOCK_WAIT_TIMEOUT: Final = 1205
UNKNOWN_DATABASE: Final = 1049
NO_SUCH_THREAD: Final = 1094
KILL_DENIED: Final = 1095
DATABASE_DENIED: Final = 1044
ACCESS_DENIED: Final = frozenset({1045, 1130, 1251, 1275, 1698, 3118, 4151})
RIGHT_DENIED: Final = frozenset({1142, 1143})  # on a table, or on a column
# The definition of a table is another one than a statement expects: no such column or table.
_OTHER_DEFINITION: Final = frozenset({1054, 1146, 1412})
REPLICATION_DENIED: Final = 1227  # or another right for all databases

_ABORTED: Final = frozenset({LOCK_WAIT_TIMEOUT, 1213})  # 1213 is a deadlock
_DUPLICATE: Final = frozenset({1062, 1586})
_READ_ONLY: Final = frozenset(
    {
        1036,  # table is read only
        1290,  # the server runs with --read-only (or --super-read-only)
        1792,  # read-only transaction
        1836,  # running in read-only mode
        1874,  # InnoDB is in read-only mode
    }
)
# Too many connections: of all users, of this user, or by a resource limit of this user.
_NO_CONNECTION_LEFT: Final = frozenset({1040, 1203, 1226})
_UNAVAILABLE: Final = frozenset(
    {
        1021,  # disk full
        1041,  # out of memory
        1047,  # a cluster node without quorum
        1053,  # shutdown in progress
        1114,  # table full, which InnoDB reports for a full disk
        *range(1152, 1162),  # network errors, seen from the server's side
        1317,  # interrupted: the result of a statement that KILL CONNECTION ends
        1927,  # connection was killed
        1969,  # statement time limit (MariaDB)
        3024,  # statement time limit (MySQL)
        3032,  # offline mode
        3169,  # session was killed
        4031,  # disconnected for inactivity
    }
)
# Errors of the client library. Nearly all mean that the connection cannot be used.
_CLIENT: Final = range(2000, 3000)
# Errors of the client library that mean that the client cannot authenticate, or cannot use TLS
# (2026). Connecting again does not help.
_CLIENT_REFUSALS: Final = frozenset({2026, 2049, 2054, 2058, 2059, 2061})


def number_of(error: Exception) -> int:
    """Return the MySQL number of an error; 0 if it has none, as for a closed connection."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def translated(error: Exception, location: str) -> StorageError:
    """Return the error of ``base.py`` for an error of PyMySQL or of a socket.

    Args:
      location: the address of the database, with which the message begins.
    """
    number = number_of(error)
    said = str(error.args[1]) if len(error.args) > 1 else str(error)
    text = f"{location}: {said or 'connection closed'}" + (f" ({number})" if number else "")
    return _kind(error, number)(text)


def lacks_right(error: StorageError) -> bool:
    """Return whether the user lacks a right to a table or column."""
    return isinstance(error.__cause__, Exception) and number_of(error.__cause__) in RIGHT_DENIED


def may_not(error: StorageError) -> bool:
    """Return whether the user lacks a right for a statement: to its table, or to LOCK TABLES."""
    cause = error.__cause__
    return lacks_right(error) or (
        isinstance(cause, Exception) and number_of(cause) == DATABASE_DENIED
    )


def waits_for_lock(error: StorageError) -> bool:
    """Return whether another session has kept a lock for too long."""
    cause = error.__cause__
    return isinstance(cause, Exception) and number_of(cause) == LOCK_WAIT_TIMEOUT


def concerns_table(error: StorageError) -> bool:
    """Return whether a table cannot be used, whichever rows a statement is about."""
    if lacks_right(error):
        return True
    return isinstance(error.__cause__, Exception) and (
        number_of(error.__cause__) in _OTHER_DEFINITION
    )


def _kind(error: Exception, number: int) -> type[StorageError]:
    if number in _ABORTED:
        return TransactionAborted
    if number in _DUPLICATE:
        return DuplicateKey
    if number in _READ_ONLY:
        return StorageReadOnly
    if number in _NO_CONNECTION_LEFT:
        return NoConnectionLeft
    if number in _UNAVAILABLE or (number in _CLIENT and number not in _CLIENT_REFUSALS):
        return StorageUnavailable
    # Errors without a number: a socket's error, PyMySQL's "closed", or packets out of order.
    lost = (OSError, pymysql.err.InterfaceError, pymysql.err.InternalError)
    if number == 0 and isinstance(error, lost):
        return StorageUnavailable
    return StorageError
