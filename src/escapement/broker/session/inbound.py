"""The bound on unfinished frames, for all connections together.

A connection in the middle of a frame reads on only while there is room. The bytes of its next
read count before the read. Two kinds of connections read on without room: the one whose
unfinished frame is the oldest, so that some frame becomes whole, and those that hold less than
their share of the bound, so that large frames do not hold up smaller ones. All shares together
are the bound once more. A connection between two frames reads a little without asking, so a
request that fits into one read never waits.

While other connections wait, a peer is cut off if it sends nothing of its frame for ``STALL_S``,
or does not finish the frame within ``timeout_s``. Time in which its own connection waits does
not count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Final

import trio

_log = logging.getLogger(__name__)

# One read of a connection that is in the middle of a frame.
LARGE_READ_BYTES: Final = 256 * 1024
# A peer that is silent for this time in the middle of a frame is cut off while others wait.
STALL_S: Final = 1.0
# One read of a connection between two frames. Each connection may send this beyond the bound.
SMALL_READ_BYTES: Final = 64 * 1024


class Inbound:
    """The unfinished frames of all connections.

    Invariant: ``held_bytes`` is the sum of what the intakes hold.
    """

    def __init__(self, most_bytes: int, timeout_s: float) -> None:
        assert most_bytes >= LARGE_READ_BYTES
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s
        self._unfinished: dict[Intake, None] = {}  # the oldest first
        self._changed = trio.lowlevel.ParkingLot()

    def hold(self, intake: Intake, held_bytes: int) -> None:
        """Set the bytes that an intake holds; 0 when it is between two frames."""
        more = held_bytes - intake.held_bytes
        self.held_bytes += more
        intake.held_bytes = held_bytes
        if held_bytes:
            self._unfinished.setdefault(intake)
        else:
            self._unfinished.pop(intake, None)
        if more < 0:
            self._changed.unpark_all()

    async def room(self, intake: Intake) -> None:
        """Wait until the intake may read on."""
        while not self._may_read(intake):
            cut_at_s = min(
                (one.reads_until_s(self._timeout_s) for one in self._unfinished), default=inf
            )
            with trio.move_on_at(cut_at_s):
                await self._changed.park()
                continue
            self._cut_stalled()

    def _may_read(self, intake: Intake) -> bool:
        share_bytes = self._most_bytes // max(len(self._unfinished), 1)
        fits = intake.held_bytes + LARGE_READ_BYTES <= share_bytes
        has_room = self.held_bytes + LARGE_READ_BYTES <= self._most_bytes
        return has_room or fits or next(iter(self._unfinished), intake) is intake

    def _cut_stalled(self) -> None:
        now_s = trio.current_time()
        for one in list(self._unfinished):
            if one.reads_until_s(self._timeout_s) <= now_s:
                _log.warning(
                    "cutting off a peer that does not finish a frame of which %d bytes came",
                    one.held_bytes,
                )
                one.close()
                one.cut_off()


class Intake:
    """The unfinished frame of one connection.

    Args:
      cut_off: ends the connection, at once.
    """

    def __init__(self, inbound: Inbound, cut_off: Callable[[], None]) -> None:
        self.held_bytes = 0
        self.cut_off = cut_off
        self._inbound = inbound
        self._reads_since_s = inf  # inf: it is not reading
        self._read_s = 0.0  # how long it has read this frame, before that

    async def next_read_bytes(self, unfinished_bytes: int) -> int:
        """Wait for room, and return the number of bytes to read next.

        Args:
          unfinished_bytes: the bytes received of a frame that is not whole.
        """
        if not unfinished_bytes:
            self.close()
            return SMALL_READ_BYTES
        self._inbound.hold(self, unfinished_bytes)
        await self._inbound.room(self)
        self._inbound.hold(self, unfinished_bytes + LARGE_READ_BYTES)
        self._reads_since_s = trio.current_time()
        return LARGE_READ_BYTES

    def has_read(self) -> None:
        """Note the end of a read. Time until the next read does not count against the peer."""
        if self._reads_since_s < inf:
            self._read_s += trio.current_time() - self._reads_since_s
            self._reads_since_s = inf

    def reads_until_s(self, timeout_s: float) -> float:
        """Return when the peer is cut off; never while the connection does not read."""
        return self._reads_since_s + min(STALL_S, timeout_s - self._read_s)

    def close(self) -> None:
        """Note that the connection holds no part of a frame any more."""
        self._inbound.hold(self, 0)
        self._reads_since_s, self._read_s = inf, 0.0
