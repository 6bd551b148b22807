"""The bound on queued output, for all connections together.

Messages and large answers are queued while there is room. Without room, a connection that holds
less than its share of the bound may still queue them, so that peers which do not read cannot stop
those which do. All shares together are the bound once more.

Small answers are queued without asking. So at three times the bound the connection that queues one
is cut off if it holds more than its share.
"""

from __future__ import annotations

from typing import Final, Protocol

# One frame of messages, or one large answer. It counts before it is read from disk.
FRAME_BYTES: Final = 1024 * 1024


class Waiting(Protocol):
    """A connection without room."""

    def has_room_again(self) -> None:
        """Learn that there may be room."""
        ...


class OutputBound:
    """The output queued on all connections.

    Invariant: ``queued_bytes`` is the sum of what the connections queue, and ``_holders`` is the
    number of connections that queue something.
    """

    def __init__(self, most_bytes: int) -> None:
        self.queued_bytes = 0
        self._most_bytes = most_bytes
        self._holders = 0
        self._waiting: dict[Waiting, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether another frame does not fit."""
        return self.queued_bytes + FRAME_BYTES > self._most_bytes

    def may_queue(self, own_bytes: int) -> bool:
        """Return whether a connection that queues ``own_bytes`` may queue another frame."""
        return not self.is_full or own_bytes + FRAME_BYTES <= self._share_bytes

    def is_exceeded_by(self, own_bytes: int) -> bool:
        """Return whether a connection that queues ``own_bytes`` must be cut off."""
        return self.queued_bytes > 3 * self._most_bytes and own_bytes > self._share_bytes

    @property
    def _share_bytes(self) -> int:
        return self._most_bytes // max(self._holders, 1)

    def change(self, before_bytes: int, after_bytes: int) -> None:
        """Note that a connection queues ``after_bytes`` instead of ``before_bytes``."""
        was_full = self.is_full
        self.queued_bytes += after_bytes - before_bytes
        self._holders += (after_bytes > 0) - (before_bytes > 0)
        assert self.queued_bytes >= 0
        if was_full and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for one in waiting:
                one.has_room_again()

    def wait(self, one: Waiting) -> None:
        """Tell a connection once when there may be room."""
        self._waiting.setdefault(one)

    def leave(self, one: Waiting) -> None:
        """Forget a connection that has ended."""
        self._waiting.pop(one, None)
