"""One transaction: durable as a whole when its block ends, or given up with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from escapement.storage.engine.base import Connection


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Commit what the block does; take it back where the block, or the commit, fails."""
    connection.begin()
    try:
        yield
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
