"""A thing that happens once, and may be waited for.

Deciding code settles it without being in an event loop; whoever waits makes the event
of whichever loop runs. Waiting for what has happened costs no checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio


class Promise:
    """Settled once; any number may wait."""

    __slots__ = ("_event", "settled")

    def __init__(self) -> None:
        self.settled = False
        self._event: anyio.Event | None = None

    def settle(self) -> None:
        """It has happened; a second time changes nothing."""
        self.settled = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return when it has happened."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()


async def all_settled(promises: Iterable[Promise], within_s: float) -> bool:
    """Wait for them, and no longer than that; whether all of it has happened."""
    with anyio.move_on_after(within_s):
        for promise in promises:
            await promise.wait()
        return True
    return False
