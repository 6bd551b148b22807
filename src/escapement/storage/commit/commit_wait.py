"""The wait of one task for an item of the commit pipeline."""

from __future__ import annotations

import trio

from escapement.errors import EscapementError


class CommitWait:
    """A wait until an item is durable or has failed."""

    def __init__(self) -> None:
        self._over = trio.Event()
        self._error: EscapementError | None = None

    def end(self, error: EscapementError | None = None) -> None:
        """End the wait. Without an error, the item is durable."""
        self._error = error
        self._over.set()

    async def ended(self) -> None:
        """Wait for the end. Raises the error."""
        await self._over.wait()
        if self._error is not None:
            raise self._error
