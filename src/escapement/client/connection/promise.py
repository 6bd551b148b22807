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
        self._then: tuple[Callable[[], None], ...] = ()

    def settle(self) -> None:
        """Mark the event as happened, and wake all waiting tasks. A second call does nothing."""
        self.settled = True
        if self._event is not None:
            self._event.set()
        then, self._then = self._then, ()
        for act in then:
            act()

    def then(self, act: Callable[[], None]) -> None:
        """Call ``act`` when this promise settles, after those of earlier calls, or now."""
        if self.settled:
            act()
        else:
            self._then += (act,)

    async def wait(self) -> None:
        """Wait until the promise is settled."""
        if not self.settled:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
