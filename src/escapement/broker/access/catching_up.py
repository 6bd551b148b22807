"""Reading again, before a refusal, what the broker of another bundle may have changed just now.

Only the owner of bundle 0 changes tokens and grants. The brokers of other bundles read them again
within a second or so. A client may be faster: it uses a token right after it was created. So such a
broker does not refuse a request before it has looked at the database. The owner of bundle 0 makes
all changes itself. But while its lease has expired, another broker may make some, so it refuses
nothing for good.

Wrong tokens and denied requests must cost nothing. So there is at most one look in ``INTERVAL_S``,
and requests that wait share it. A look reads a single number, the version of the catalog; the
tables follow only if the version has changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

import trio

from escapement.errors import StorageError

INTERVAL_S: Final = 1.0


class CatchingUp:
    """The looks of a broker at the version of the catalog.

    Args:
      version: reads the version from the database.
      refresh: reads the tables again.
    """

    def __init__(
        self, version: Callable[[], Awaitable[int]], refresh: Callable[[], Awaitable[None]]
    ) -> None:
        self._version = version
        self._refresh = refresh
        self._known = -1  # the last refresh has read the tables of this version, or of a later one
        self._begun = 0  # number of looks that have begun
        self._ended = 0  # the last of them that has ended, and was not cancelled
        self._error: StorageError | None = None  # of that look
        self._next_s = -inf  # when the next look may begin
        self._lock = trio.Lock()

    async def catch_up(self) -> None:
        """Return when all changes that were durable at the call have taken effect.

        Raises:
          StorageError: if the database cannot be read.
        """
        begun = self._begun
        async with self._lock:
            if self._ended <= begun:
                await trio.sleep_until(self._next_s)
                self._begun += 1
                self._next_s = trio.current_time() + INTERVAL_S
                self._error = await self._look()
                self._ended = self._begun
            if self._error is not None:
                raise self._error.with_traceback(None)

    async def _look(self) -> StorageError | None:
        """Read the version, and the tables if it has changed. Return the error, if it fails."""
        try:
            version = await self._version()
            if version != self._known:
                await self._refresh()
                self._known = version
        except StorageError as error:
            return error
        return None
