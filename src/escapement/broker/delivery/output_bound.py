"""The bound on queued output, for all connections together.

Messages and large answers are queued while there is room. Without room, a connection that holds
less than its share may still queue them, so that peers which do not read cannot stop those which
do. The share is a part of what is left of twice the bound, so all together stay below that.
(Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998.)

Frames of messages shrink with the share. So a connection that queues nothing may always queue a
frame, and consumers that read slowly do not keep others from getting messages.

Small answers are queued without asking. So at three times the bound the connection that queues one
is cut off if it holds more than an equal part of the bound.
"""

from __future__ import annotations

from typing import Final, Protocol

# The largest frame of messages, and one large answer. It counts before it is read from disk.
FRAME_BYTES: Final = 1024 * 1024
# The share of a connection is this part of what is left of twice the bound, and no less than
# LEAST_SHARE_BYTES, by which each connection may exceed twice the bound.
_SHARE: Final = 4
LEAST_SHARE_BYTES: Final = 16 * 1024


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
        """Whether another frame of the largest size does not fit."""
        return self.queued_bytes + FRAME_BYTES > self._most_bytes

    def frame_bytes(self, frames: int) -> int:
        """Return how large each of this many frames may be that are queued now."""
        room_bytes = max(self._most_bytes - self.queued_bytes, self._share_bytes)
        return min(FRAME_BYTES, max(room_bytes // max(frames, 1), LEAST_SHARE_BYTES))

    def may_queue(self, own_bytes: int, more_bytes: int) -> bool:
        """Return whether a connection that queues ``own_bytes`` may queue ``more_bytes``."""
        has_room = self.queued_bytes + more_bytes <= self._most_bytes
        return has_room or own_bytes + more_bytes <= self._share_bytes

    def is_exceeded_by(self, own_bytes: int) -> bool:
        """Return whether a connection that queues ``own_bytes`` must be cut off."""
        if self.queued_bytes <= 3 * self._most_bytes:
            return False
        return own_bytes > self._most_bytes // max(self._holders, 1)

    @property
    def _share_bytes(self) -> int:
        return max((2 * self._most_bytes - self.queued_bytes) // _SHARE, LEAST_SHARE_BYTES)

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
