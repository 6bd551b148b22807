"""Readers of binary logs: they make the broker look for new rows as soon as these are committed.

There is one reader for each server that has message tables or outboxes. Each INSERT that it reports
is a *hint*: it makes the broker poll the table now. Polls find the same rows without hints, only
later. So nothing depends on a reader. An error switches it off with a warning, and it tries again
every minute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import trio

from escapement.errors import StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage.binary_log import BinaryLog
from escapement.storage.engine.address import MysqlAddress

_log = EventLog(__name__)

# The pause after an error.
_RETRY_S: Final = 60.0
# An attempt that lasted this long was a success, so the error that ended it is a new one.
_WORKED_S: Final = 15.0


class BinaryLogs:
    """The readers of all servers.

    Args:
      addresses: the databases whose tables are reported.
      hints: each is called in the event loop with a database and a table that has new rows.
    """

    def __init__(
        self, addresses: Iterable[MysqlAddress], hints: Sequence[Callable[[str, str], None]]
    ) -> None:
        self._hints = hints
        by_server: dict[tuple[str, int, str | None], dict[str, MysqlAddress]] = {}
        for address in addresses:
            server = address.host, address.port, address.unix_socket
            by_server.setdefault(server, {})[address.database] = address
        self._logs = [
            BinaryLog(next(iter(databases.values())), databases) for databases in by_server.values()
        ]

    async def run(self) -> None:
        """Read until cancelled."""
        async with trio.open_nursery() as nursery:
            for log in self._logs:
                nursery.start_soon(self._follow, log)

    async def _follow(self, log: BinaryLog) -> None:
        token = trio.lowlevel.current_trio_token()
        limiter = trio.CapacityLimiter(1)

        def inserted(database: str, table: str) -> None:
            # "Idempotent" merges all hints for a table that come before the event loop has a turn.
            with suppress(trio.RunFinishedError):
                for hint in self._hints:
                    token.run_sync_soon(hint, database, table, idempotent=True)

        try:
            warned = ""
            while True:
                began_s = trio.current_time()
                try:
                    await trio.to_thread.run_sync(
                        log.read, inserted, abandon_on_cancel=True, limiter=limiter
                    )
                except StorageUnavailable as error:
                    again = str(error) == warned and trio.current_time() - began_s < _WORKED_S
                    level = logging.DEBUG if again else logging.WARNING
                    warned = str(error)
                    _log.log(
                        level,
                        "binlog.unavailable",
                        "new rows wait for polls; no binary log: %s",
                        error,
                        database=log.location,
                    )
                await trio.sleep(_RETRY_S)
        finally:
            log.close()
