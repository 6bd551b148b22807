"""The state of a backfill: the index was lost, and the broker adds the messages of the log to it.

A broker that starts without a usable index serves at once, and fills the index meanwhile
(broker/upkeep/backfiller.py). Messages that are due or due soon come first. ``reached_ms`` is the
*horizon*: the index has all messages of the log that are due before it.

Invariants: the horizon never decreases. When the backfill ends, the index has all messages.

Pure: no clock, no I/O. The topics and subscriptions of a broker share one object.
"""

from __future__ import annotations

from typing import Final

import trio

from escapement.errors import Busy

# How long a request that needs the whole index waits before it is refused.
_PATIENCE_S: Final = 1.0


class Backfill:
    """Whether the index lacks messages of the log, and which ones it may lack."""

    def __init__(self, *, is_running: bool = False) -> None:
        self.reached_ms = 0  # the index has all messages that are due before this time
        self._ended = trio.Event()
        if not is_running:
            self._ended.set()

    @property
    def is_running(self) -> bool:
        """Whether the index may lack messages."""
        return not self._ended.is_set()

    def reach(self, due_ms: int) -> None:
        """Note that the index has all messages that are due before ``due_ms``."""
        self.reached_ms = max(self.reached_ms, due_ms)

    def end(self) -> None:
        """Note that the index has all messages."""
        self._ended.set()

    async def ended(self) -> None:
        """Wait until the index has all messages."""
        if self.is_running:
            await self._ended.wait()

    async def whole_index(self) -> None:
        """Wait a moment until the index has all messages.

        Raises:
          Busy: if it still lacks some.
        """
        with trio.move_on_after(_PATIENCE_S):
            await self.ended()
        if self.is_running:
            raise Busy(
                "The broker started without its delayed index and is filling it from the log. It"
                " delivers messages meanwhile, but cannot list or search them yet. Try again later."
            )


# The backfill of an index that lacks no messages.
WHOLE: Final = Backfill()
