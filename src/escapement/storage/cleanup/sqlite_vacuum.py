"""The SQLite vacuum: returns unused space of the database file to the file system, in small steps.

MySQL returns the space of a table when it drops the table. SQLite keeps freed pages in its file for
reuse. The vacuum leaves a share of the file free for reuse and returns the rest. A step moves some
pages from the end of the file into free pages and truncates the file. The file shrinks when SQLite
next copies its write-ahead log (WAL) into it.
"""

from __future__ import annotations

from typing import Final

from escapement.storage.engine.base import Connection, Engine

# Pages of 16 KiB that stay free for new data: this number, and one more for each 8 used pages.
_SPARE_PAGES: Final = 256
_SPARE_SHARE: Final = 8
# Limit of pages returned in one step, which delays commits by some milliseconds.
_STEP_PAGES: Final = 64


def keeps(engine: Engine) -> bool:
    """Return whether the database keeps freed space in its file, so that it needs the vacuum."""
    return engine.kind == "sqlite"


def is_wanted(connection: Connection) -> bool:
    """Return whether there are pages to give back, so that :func:`give_back_step` has work."""
    return _excess_pages(connection) > 0


def give_back_step(connection: Connection) -> bool:
    """Give some free pages of the file back to the file system, inside the open transaction.

    Returns:
      Whether there may be more to give back.
    """
    excess = _excess_pages(connection)
    for _ in range(min(excess, _STEP_PAGES)):
        # One page at a time. Python's sqlite3 executes only the first step of this statement, which
        # returns one page, whatever number it is given.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return excess > 0


def _excess_pages(connection: Connection) -> int:
    """Return how many more pages are free than shall stay free."""
    free, pages, mode = (
        int(connection.execute(f"PRAGMA {name}").rows[0][0])
        for name in ("freelist_count", "page_count", "auto_vacuum")
    )
    spare = _SPARE_PAGES + (pages - free) // _SPARE_SHARE
    return max(free - spare, 0) if mode else 0
