"""Purges: the broker deletes acknowledged rows that are old enough, a portion at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, Final

import trio

from escapement.broker.tables.claim import NANOSECONDS
from escapement.errors import StorageError
from escapement.event_log import EventLog
from escapement.storage.engine.base import Connection
from escapement.tables.discovery import MessageTable
from escapement.tables.purge import purge, to_purge

_log = EventLog(__name__)

# The shortest and the longest interval between two purges.
_SHORTEST_S: Final = 2.0
_LONGEST_S: Final = 30.0


class Purging:
    """The purges of the tables of one database.

    Args:
      location: the address of the database for log lines.
      ask: calls a function with a connection to the database, in a thread.
    """

    def __init__(
        self, location: str, ask: Callable[[Callable[[Connection], Any]], Awaitable[Any]]
    ) -> None:
        self._location = location
        self._ask = ask
        self.next_s = 0.0  # when to purge next, on the clock of the event loop

    def put_off(self, tables: Collection[MessageTable]) -> None:
        """Purge again after a part of the shortest ``purge_after``."""
        shortest_s = min([one.directives.purge_after_ms for one in tables], default=0) / 1000
        self.next_s = trio.current_time() + min(max(shortest_s / 4, _SHORTEST_S), _LONGEST_S)

    async def purge(self, tables: Collection[MessageTable], now_ms: int) -> None:
        """Delete a portion of the old acknowledged rows of each table. Logs errors."""
        self.put_off(tables)
        before_ns = {
            table: (now_ms - table.directives.purge_after_ms) * NANOSECONDS for table in tables
        }
        try:
            wanted = await self._ask(partial(to_purge, tables=list(before_ns.items())))
        except StorageError as error:
            _log.warning(
                "tables.not_purged",
                "%s: tables are not purged: %s",
                self._location,
                error,
                database=self._location,
            )
            return
        for table in wanted:
            try:
                deleted = await self._ask(partial(purge, table=table, before_ns=before_ns[table]))
            except StorageError as error:
                _log.warning(
                    "tables.not_purged",
                    "%s: table %s is not purged: %s",
                    self._location,
                    table.name,
                    error,
                    database=self._location,
                    table=table.name,
                )
                continue
            if deleted:
                self.next_s = trio.current_time()  # there may be more
