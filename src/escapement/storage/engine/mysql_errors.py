"""What a MySQL or MariaDB error number means in the words of ``engine.base``.

Owns the tables of numbers and nothing else. A number that stands in none of them is
a ``StorageError``: the statement was refused, the connection is as it was.
"""

from __future__ import annotations

from typing import Final

import pymysql

from escapement.errors import StorageError, StorageReadOnly, StorageUnavailable
from escapement.storage.engine.base import DuplicateKey, TransactionAborted

LOCK_WAIT_TIMEOUT: Final = 1205
UNKNOWN_DATABASE: Final = 1049
NO_SUCH_THREAD: Final = 1094
KILL_DENIED: Final = 1095
DATABASE_DENIED: Final = 1044
ACCESS_DENIED: Final = frozenset({1045, 1130, 1251, 1275, 1698, 3118, 4151})

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
_UNAVAILABLE: Final = frozenset(
    {
        1021,  # disk full
        1040,  # too many connections
        1041,  # out of memory
        1047,  # a cluster node that is not in its quorum
        1053,  # shutdown in progress
        1114,  # table full, which is how InnoDB says "disk full"
        *range(1152, 1162),  # network errors, seen from the server's side
        1203,  # too many connections of this user
        1226,  # a resource limit of this user
        1317,  # interrupted: what KILL CONNECTION gives the statement under way
        1927,  # connection was killed
        1969,  # statement time limit (MariaDB)
        3024,  # statement time limit (MySQL)
        3032,  # offline mode
        3169,  # session was killed
        4031,  # disconnected for inactivity
    }
)
# The client library's own numbers; nearly all say that the connection is of no use.
_CLIENT: Final = range(2000, 3000)
# Cannot authenticate, or not with TLS (2026).
_CLIENT_REFUSALS: Final = frozenset({2026, 2049, 2054, 2058, 2059, 2061})


def number_of(error: Exception) -> int:
    """The error's number; 0 where it has none, as for a closed connection."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def translated(error: Exception, location: str) -> StorageError:
    """``error`` of PyMySQL or of a socket, in our words."""
    number = number_of(error)
    said = str(error.args[1]) if len(error.args) > 1 else str(error)
    text = f"{location}: {said or 'connection closed'}" + (f" ({number})" if number else "")
    return _kind(error, number)(text)


def _kind(error: Exception, number: int) -> type[StorageError]:
    if number in _ABORTED:
        return TransactionAborted
    if number in _DUPLICATE:
        return DuplicateKey
    if number in _READ_ONLY:
        return StorageReadOnly
    if number in _UNAVAILABLE or (number in _CLIENT and number not in _CLIENT_REFUSALS):
        return StorageUnavailable
    # Without a number: a socket's error, PyMySQL's "closed" or packets out of order.
    lost = (OSError, pymysql.err.InterfaceError, pymysql.err.InternalError)
    if number == 0 and isinstance(error, lost):
        return StorageUnavailable
    return StorageError
