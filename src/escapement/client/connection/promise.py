"""A one-time event that any number of tasks may wait for.

A promise can be created and settled without an event loop: it creates an event of the running
loop only when a task waits for it. Waiting for a settled promise executes no checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio


class Promise:
    """A one-time event; ``settled`` is True after it has happened."""

    __slots__ = ("_event", "_then", "settled")

    def __init__(self) -> None:
        self.settled = False
        self._event: anyio.Event | None = None
        self._then: Callable[[], None] | None = None

    def settle(self) -> None:
        """Mark the event as happened, and wake all waiting tasks. A second call does nothing."""
        self.settled = True
        if self._event is not None:
            self._event.set()
        if self._then is not None:
            then, self._then = self._then, None
            then()

    def then(self, act: Callable[[], None]) -> None:
        """Call ``act`` when this promise settles, or now. A promise has one such function."""
        assert self._then is None, "a promise calls one function"
        if self.settled:
            act()
        else:
            self._then = act

    async def wait(self) -> None:
        """Wait until the promise is settled."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
