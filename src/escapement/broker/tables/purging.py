"""Purges: the broker deletes acknowledged rows that are old enough, a portion at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

import trio

from escapement.broker.tables.claim import NANOSECONDS
from escapement.broker.tables.trouble import divided
from escapement.errors import StorageError, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage.engine.base import Connection
from escapement.tables.discovery import MessageTable
from escapement.tables.purge import purge, to_purge

_log = EventLog(__name__)

# The shortest and the longest interval between two purges.
_SHORTEST_S: Final = 2.0
_LONGEST_S: Final = 30.0
# A table that cannot be purged is tried again after this time.
_BAD_TABLE_S: Final = 60.0


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
        # When to try tables again that could not be purged.
        self._again_s: dict[MessageTable, float] = {}

    def put_off(self, tables: Collection[MessageTable]) -> None:
        """Purge again after a part of the shortest ``purge_after``."""
        shortest_s = min([one.directives.purge_after_ms for one in tables], default=0) / 1000
        self.next_s = trio.current_time() + min(max(shortest_s / 4, _SHORTEST_S), _LONGEST_S)

    async def purge(self, tables: Collection[MessageTable], now_ms: int) -> None:
        """Delete a portion of the old acknowledged rows of each table. Logs errors."""
        self.put_off(tables)
        now_s = trio.current_time()
        self._again_s = {one: again_s for one, again_s in self._again_s.items() if again_s > now_s}
        before_ns = {
            table: (now_ms - table.directives.purge_after_ms) * NANOSECONDS
            for table in tables
            if table not in self._again_s
        }
        try:
            for table in await self._wanted(list(before_ns.items())):
                try:
                    call = partial(purge, table=table, before_ns=before_ns[table])
                    deleted = await self._ask(call)
                except StorageUnavailable:
                    raise
                except StorageError as error:
                    self._failed(table, error)
                else:
                    if deleted:
                        self.next_s = trio.current_time()  # there may be more
        except StorageUnavailable as error:
            _log.warning(
                "tables.not_purged",
                "%s: tables are not purged: %s",
                self._location,
                error,
                database=self._location,
            )

    async def _wanted(self, tables: Sequence[tuple[MessageTable, int]]) -> list[MessageTable]:
        """Return the tables that have rows to delete. Leave out those that cannot be asked.

        Raises:
          StorageUnavailable: if the database cannot be used.
        """
        try:
            found: list[MessageTable] = await self._ask(partial(to_purge, tables=tables))
        except StorageUnavailable:
            raise
        except StorageError as error:
            if len(tables) == 1:
                self._failed(tables[0][0], error)
                return []
            return [one for part in divided(tables) for one in await self._wanted(part)]
        return found

    def _failed(self, table: MessageTable, error: StorageError) -> None:
        self._again_s[table] = trio.current_time() + _BAD_TABLE_S
        _log.warning(
            "tables.not_purged",
            "%s: table %s is not purged: %s",
            self._location,
            table.name,
            error,
            database=self._location,
            table=table.name,
        )
