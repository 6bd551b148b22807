"""Named locks of a MySQL or MariaDB server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from escapement.errors import EscapementError
from escapement.storage.engine.base import Connection


@contextmanager
def named_lock(connection: Connection, name: str, wait_s: int) -> Iterator[bool]:
    """Hold a lock while this connection lives. Provide whether it was free within ``wait_s``."""
    # Named locks are global to the server. The hash of the database's name makes ours unique.
    lock = f"CONCAT('escapement.{name}', SHA1(DATABASE()))"
    got = connection.execute(f"SELECT GET_LOCK({lock}, {wait_s})").rows[0][0] == 1
    try:
        yield got
    finally:
        if got:
            # Closing the connection releases the lock too, but the server may notice only later.
            with suppress(EscapementError):
                connection.execute(f"SELECT RELEASE_LOCK({lock})")
