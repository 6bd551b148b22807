"""Room that nothing uses any more, given back to the file system in bounded steps.

MySQL gives a table's room back when it drops it. SQLite keeps what was freed in its file, to be
used again; of that more than a share of the file is given back. A step moves some pages from the
file's end into such room and cuts the file off behind them; it is shorter once they are folded in.
"""

from __future__ import annotations

from typing import Final

from escapement.storage.engine.base import Connection, Engine

# Pages of 16 KiB, for what is to come: so many, and one for so many others.
_SPARE_PAGES: Final = 256
_SPARE_SHARE: Final = 8
# Pages in one step, for which commits wait some milliseconds.
_STEP_PAGES: Final = 64


def keeps(engine: Engine) -> bool:
    """Whether the database keeps what was freed."""
    return engine.kind == "sqlite"


def give_back_step(connection: Connection) -> bool:
    """Give back some of it inside the open transaction; whether there may be more."""
    free, pages, mode = (
        int(connection.execute(f"PRAGMA {name}").rows[0][0])
        for name in ("freelist_count", "page_count", "auto_vacuum")
    )
    spare = _SPARE_PAGES + (pages - free) // _SPARE_SHARE
    if not mode or free <= spare:
        return False
    for _ in range(min(free - spare, _STEP_PAGES)):
        # A page: Python takes one step of a statement that gives no columns, whatever it asks for.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return True
