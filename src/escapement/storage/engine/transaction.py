"""A context manager for a database transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from escapement.storage.engine.base import Connection


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the ``with`` block in a transaction, and commit it.

    Rolls back if the block or the commit fails.
    """
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
