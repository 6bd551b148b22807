"""The detection of silent peers: a connection that is silent for too long is ended.

A deadline for each read would be set and removed with each frame. Instead, each read notes when
it began, and one task checks that now and then.
"""

from __future__ import annotations

import trio


class SilenceTimeout:
    """The silence of one peer.

    Args:
      longest_s: how long the silence may last.
    """

    __slots__ = ("_longest_s", "_since_s", "_watching", "scope")

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._since_s: float | None = None  # None: received data is being handled
        self._watching = trio.CancelScope()
        self.scope = trio.CancelScope()  # cancelled when the silence has lasted too long

    def begin(self) -> None:
        """Note that a read begins."""
        self._since_s = trio.current_time()

    def end(self) -> None:
        """Note that data was received."""
        self._since_s = None

    def close(self) -> None:
        """End ``watch``."""
        self._watching.cancel()

    async def watch(self) -> None:
        """Cancel ``scope`` when the silence has lasted too long. Runs until ``close``."""
        with self._watching:
            while True:
                since_s, now_s = self._since_s, trio.current_time()
                left_s = self._longest_s if since_s is None else since_s + self._longest_s - now_s
                if left_s <= 0:
                    self.scope.cancel()
                    return
                await trio.sleep(left_s)
