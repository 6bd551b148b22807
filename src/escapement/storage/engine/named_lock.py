"""Named locks of a MySQL or MariaDB server: only one connection at a time can hold a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from escapement.errors import EscapementError, StorageUnavailable
from escapement.storage.engine.base import Connection, Engine

# The most characters in the name of a lock.
_LONGEST_NAME: Final = 64
# How long to wait until the server has ended the connection that holds a lock.
_TAKE_OVER_S: Final = 5
# The server's locks are common to all its databases. So the name of a lock includes a hash of the
# name of its database. MySQL has had no SHA1 since version 9.6.
_HASH: Final = "SHA2(DATABASE(), 256)"


@contextmanager
def named_lock(connection: Connection, name: str, wait_s: int) -> Iterator[bool]:
    """Hold a lock until the ``with`` block ends; it is lost if the connection is closed.

    Waits at most ``wait_s`` for the lock. Provides whether it was taken: if not, the block runs
    without the lock.

    Args:
      name: the name of the lock; each database has its own lock of that name.
    """
    lock = f"CONCAT('escapement.{name}', LEFT({_HASH}, 40))"
    got = connection.execute(f"SELECT GET_LOCK({lock}, {wait_s})").rows[0][0] == 1
    try:
        yield got
    finally:
        if got:
            # Closing the connection would release the lock too, but perhaps only after a while.
            with suppress(EscapementError):
                connection.execute(f"SELECT RELEASE_LOCK({lock})")


def take_over(engine: Engine, connection: Connection, name: str) -> None:
    """Take a lock for as long as the connection lasts, and end the connection that holds it.

    The caller must know that the holder is an earlier broker, which may hang.

    Args:
      name: the name of the lock, at most 53 characters. Databases of one server that must not
        share the lock need different names.

    Raises:
      StorageUnavailable: if the holder cannot be ended.
    """
    lock = f"'escapement.{name}'"
    assert len(lock) <= _LONGEST_NAME + 2, "the server would refuse the name"
    if connection.execute(f"SELECT GET_LOCK({lock}, 0)").rows[0][0] == 1:
        return
    holder = connection.execute(f"SELECT IS_USED_LOCK({lock})").rows[0][0]
    if holder is not None:
        engine.kill([int(holder)])
    if connection.execute(f"SELECT GET_LOCK({lock}, {_TAKE_OVER_S})").rows[0][0] != 1:
        raise StorageUnavailable(f"{engine.location}: connection {holder} holds the lock {name}")
