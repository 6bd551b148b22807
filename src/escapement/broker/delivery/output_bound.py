"""The bound on queued output, for all connections together.

The broker queues messages and answers for each connection until the peer reads them. While all
queues together stay within the bound, there is *room*: every connection may queue messages and
large answers. Without room, a connection may still queue them up to its *share*, so that peers
which do not read cannot stop those which do. The share is a quarter of what is left of twice the
bound, so all queues together stay below twice the bound. (Choudhury and Hahne, "Dynamic Queue
Length Thresholds for Shared-Memory Packet Switches", 1998.)

Frames of messages are smaller when there is little room. So a connection that queues nothing may
always queue a frame, and consumers that read slowly do not keep others from getting messages.

A connection that queues nothing may also queue a large answer, until all queues together reach
three times the bound. So consumers that read large messages slowly do not keep others from getting
answers. If such an answer must wait nevertheless, peers that accept less than ``FRAME_BYTES`` in
``STALL_S`` are cut off, one at a time, until it may be queued.

Small answers, and single messages that are larger than the share, are queued without a check. So
when all queues together exceed three times the bound, the slowest connection is cut off, one at a
time, until they do not.
"""

from __future__ import annotations

from typing import Final, Protocol

from escapement.event_log import EventLog

_log = EventLog(__name__)

# The size of the largest frame of messages, and the size reserved for a large answer before it is
# read from disk.
FRAME_BYTES: Final = 1024 * 1024
# The share of a connection is a _SHARE-th of what is left of twice the bound, but at least
# LEAST_SHARE_BYTES. When nothing is left, each connection may still queue that much.
_SHARE: Final = 4
LEAST_SHARE_BYTES: Final = 16 * 1024
# All queues together may grow to this multiple of the bound. Then connections are cut off.
_CUT: Final = 3
# The time in which a peer must accept some output while others wait.
STALL_S: Final = 5.0


class Connection(Protocol):
    """A connection that queues output."""

    def has_room_again(self) -> None:
        """Try again to queue output, because there may be room now."""
        ...

    @property
    def queued_bytes(self) -> int:
        """The size of its queue."""
        ...

    @property
    def slow_since_s(self) -> float:
        """The event loop's time since which the peer has accepted little of the current write."""
        ...

    @property
    def is_slow(self) -> bool:
        """Whether its peer has accepted less than ``FRAME_BYTES`` in ``STALL_S``."""
        ...

    def cut_off(self) -> None:
        """End the connection at once, release its queue, and call ``leave``."""
        ...


class OutputBound:
    """The output that is queued for all connections.

    Invariant: ``queued_bytes`` is the total size of all queues.

    Args:
      most_bytes: the bound.
    """

    def __init__(self, most_bytes: int) -> None:
        self.queued_bytes = 0
        self._most_bytes = most_bytes
        self._waiting: dict[Connection, None] = {}
        self._writing: set[Connection] = set()

    @property
    def is_full(self) -> bool:
        """Whether there is no room for a frame of the largest size."""
        return self.queued_bytes + FRAME_BYTES > self._most_bytes

    def frame_bytes(self, frames: int) -> int:
        """Return the largest size of each frame of messages if ``frames`` frames are queued now."""
        room_bytes = max(self._most_bytes - self.queued_bytes, self._share_bytes)
        return min(FRAME_BYTES, max(room_bytes // max(frames, 1), LEAST_SHARE_BYTES))

    def may_queue(self, own_bytes: int, more_bytes: int) -> bool:
        """Return whether a connection with a queue of ``own_bytes`` may add ``more_bytes``."""
        total_bytes = self.queued_bytes + more_bytes
        if total_bytes <= self._most_bytes or own_bytes + more_bytes <= self._share_bytes:
            return True
        return own_bytes == 0 and total_bytes <= _CUT * self._most_bytes

    @property
    def _share_bytes(self) -> int:
        return max((2 * self._most_bytes - self.queued_bytes) // _SHARE, LEAST_SHARE_BYTES)

    def change(self, before_bytes: int, after_bytes: int) -> None:
        """Note that a connection's queue has changed in size; wake those that wait for room."""
        was_bytes = self.queued_bytes
        self.queued_bytes += after_bytes - before_bytes
        assert self.queued_bytes >= 0
        if self._waiting and any(
            self.queued_bytes <= most_bytes - FRAME_BYTES < was_bytes
            for most_bytes in (self._most_bytes, _CUT * self._most_bytes)
        ):
            waiting, self._waiting = self._waiting, {}
            for one in waiting:
                one.has_room_again()

    def begin_write(self, one: Connection) -> None:
        """Note that a connection begins to write; ``end_write`` or ``leave`` must follow."""
        self._writing.add(one)

    def end_write(self, one: Connection) -> None:
        """Note that a connection has written what it began to write."""
        self._writing.discard(one)

    def check(self) -> None:
        """Cut off the slowest connections while all queue too much, or they hold up an answer.

        O(connections that write or wait) near three times the bound, otherwise O(1).
        """
        while (left_bytes := _CUT * self._most_bytes - self.queued_bytes) < FRAME_BYTES:
            slow = list(self._writing)
            if left_bytes >= 0:
                if all(one.queued_bytes for one in self._waiting):
                    return
                slow = [one for one in slow if one.is_slow]
            if not slow:
                return
            slowest = min(slow, key=lambda one: one.slow_since_s)
            _log.warning(
                "connection.cut_off",
                "cutting off the slowest peer, because the output of all is too large",
                reason="output_full",
                queued_bytes=slowest.queued_bytes,
            )
            slowest.cut_off()
            assert slowest not in self._writing

    def wait(self, one: Connection) -> None:
        """Call ``has_room_again`` of a connection, once, when there may be room."""
        self._waiting.setdefault(one)

    def leave(self, one: Connection) -> None:
        """Forget a connection that has ended."""
        self._waiting.pop(one, None)
        self._writing.discard(one)
