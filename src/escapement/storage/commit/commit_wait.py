"""A wait for an item of the commit pipeline to be committed or to fail."""

from __future__ import annotations

import trio

from escapement.errors import EscapementError


class CommitWait:
    """The wait of one task until its item is durable or has failed."""

    def __init__(self) -> None:
        self._over = trio.Event()
        self._error: EscapementError | None = None

    def end(self, error: EscapementError | None = None) -> None:
        """End the wait, because the item is durable, or because it failed with ``error``."""
        self._error = error
        self._over.set()

    async def ended(self) -> None:
        """Wait until the item is durable. If it fails, raise its error."""
        await self._over.wait()
        if self._error is not None:
            raise self._error
