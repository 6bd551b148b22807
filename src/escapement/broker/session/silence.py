"""How long nothing has been heard of a peer: it ends a connection that is silent for too long.

A deadline around each read would be laid and lifted with each frame. Here each read notes when
it began, and one task looks at that now and then.
"""

from __future__ import annotations

import trio


class Silence:
    """See the module's docstring.

    Args:
      longest_s: how long it may last.
    """

    __slots__ = ("_longest_s", "_since_s", "_watching", "scope")

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._since_s: float | None = None  # None: what was heard is being dealt with
        self._watching = trio.CancelScope()
        self.scope = trio.CancelScope()  # is cancelled when it has lasted too long

    def begin(self) -> None:
        """The peer is listened to from now on."""
        self._since_s = trio.current_time()

    def end(self) -> None:
        """Something was heard."""
        self._since_s = None

    def close(self) -> None:
        """Nobody listens any more."""
        self._watching.cancel()

    async def watch(self) -> None:
        """Cancel ``scope`` when it has lasted too long; until closed."""
        with self._watching:
            while True:
                since_s, now_s = self._since_s, trio.current_time()
                left_s = self._longest_s if since_s is None else since_s + self._longest_s - now_s
                if left_s <= 0:
                    self.scope.cancel()
                    return
                await trio.sleep(left_s)
