"""A context manager for transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from escapement.storage.engine.base import Connection


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Commit the changes of the block. Roll them back if the block or the commit fails."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
