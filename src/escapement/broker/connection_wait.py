"""Waiting at a start for a server that has no connection left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from escapement.event_log import EventLog
from escapement.storage.engine.base import NoConnectionLeft

_log = EventLog(__name__)

T = TypeVar("T")

_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0


async def when_connected(call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``call``. Call it again while the server has no connection left.

    A server that cannot be reached at all is an error at once: its address may be wrong.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await call()
        except NoConnectionLeft as error:
            _log.warning("database.no_connection_left", "the start waits: %s", error)
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)
