"""The SQLite vacuum: returns unused space to the file system in bounded steps.

MySQL returns the space of a table when it drops the table. SQLite keeps freed pages in its file for
reuse. If they exceed a share of the file, the vacuum returns the rest. A step moves some pages from
the end of the file into free pages and truncates the file. The file shrinks when SQLite folds the
WAL into it.
"""

from __future__ import annotations

from typing import Final

from escapement.storage.engine.base import Connection, Engine

# Pages of 16 KiB kept free for new data: a fixed number, and one for each 8 used pages.
_SPARE_PAGES: Final = 256
_SPARE_SHARE: Final = 8
# Pages in one step, which delays commits by some milliseconds.
_STEP_PAGES: Final = 64


def keeps(engine: Engine) -> bool:
    """Return whether the database keeps freed space."""
    return engine.kind == "sqlite"


def give_back_step(connection: Connection) -> bool:
    """Return some space inside the open transaction. Return whether there may be more."""
    free, pages, mode = (
        int(connection.execute(f"PRAGMA {name}").rows[0][0])
        for name in ("freelist_count", "page_count", "auto_vacuum")
    )
    spare = _SPARE_PAGES + (pages - free) // _SPARE_SHARE
    if not mode or free <= spare:
        return False
    for _ in range(min(free - spare, _STEP_PAGES)):
        # One page at a time: Python steps a statement without columns only once, whatever N is.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return True
