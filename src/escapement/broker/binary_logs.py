"""Readers of binary logs: they make the broker look for new rows as soon as these are committed.

There is one reader for each server that has message tables or outboxes. Each INSERT that it reports
is a *hint*: it makes the broker poll the table now. Polls find the same rows without hints, only
later. So nothing depends on a reader. An error switches it off with a warning, and it tries again
every minute. If the databases of a server have several users, it tries one after the other, because
perhaps not all of them may read the binary log.
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
        by_server: dict[tuple[str, int, str | None], list[MysqlAddress]] = {}
        for address in addresses:
            server = address.host, address.port, address.unix_socket
            by_server.setdefault(server, []).append(address)
        self._servers = [_logs_of(found) for found in by_server.values()]

    async def run(self) -> None:
        """Read until cancelled."""
        async with trio.open_nursery() as nursery:
            for logs in self._servers:
                nursery.start_soon(self._follow, logs)

    async def _follow(self, logs: Sequence[BinaryLog]) -> None:
        """Read the binary log of a server, by the first of these readers that can."""
        warned = ""
        try:
            while True:
                reasons: dict[str, None] = {}
                for log in logs:
                    began_s = trio.current_time()
                    reason = await self._read(log, bool(warned))
                    if trio.current_time() >= began_s + _WORKED_S:
                        warned = ""
                        reasons.clear()
                    reasons[reason] = None
                said = "; ".join(reasons)
                level = logging.DEBUG if said == warned else logging.WARNING
                _log.log(
                    level,
                    "binlog.unavailable",
                    "new rows wait for polls; no binary log: %s",
                    said,
                    database=logs[0].location,
                )
                warned = said
                await trio.sleep(_RETRY_S)
        finally:
            for log in logs:
                log.close()

    async def _read(self, log: BinaryLog, tell: bool) -> str:
        """Read until an error, and return it.

        Args:
          tell: whether to log that reading works.
        """
        token = trio.lowlevel.current_trio_token()

        def inserted(database: str, table: str) -> None:
            # "Idempotent" merges all hints for a table that come before the event loop has a turn.
            with suppress(trio.RunFinishedError):
                for hint in self._hints:
                    token.run_sync_soon(hint, database, table, idempotent=True)

        async def tell_success() -> None:
            await trio.sleep(_WORKED_S)
            _log.info(
                "binlog.working",
                "the binary log of %s is read again",
                log.location,
                database=log.location,
            )

        reason = ""
        async with trio.open_nursery() as nursery:
            if tell:
                nursery.start_soon(tell_success)
            try:
                await trio.to_thread.run_sync(
                    log.read, inserted, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1)
                )
            except StorageUnavailable as error:
                reason = str(error)
            nursery.cancel_scope.cancel()
        return reason


def _logs_of(addresses: Sequence[MysqlAddress]) -> list[BinaryLog]:
    """Return a reader for each user of a server. All report the same databases."""
    databases = {address.database for address in addresses}
    by_user: dict[tuple[str, str], MysqlAddress] = {}
    for address in addresses:
        by_user.setdefault((address.user, address.password), address)
    return [BinaryLog(address, databases) for address in by_user.values()]
