"""The bound on unfinished frames, for all connections together.

A connection in the middle of a frame reads on only while there is room. The bytes of its next
read count before the read. Two kinds of connections read on without room: the one whose
unfinished frame is the oldest, so that some frame becomes whole, and those that hold less than
their share of the bound, so that large frames do not hold up smaller ones. All shares together
are the bound once more. A connection between two frames reads a little without asking, so a
request that fits into one read never waits.

While other connections wait, a peer is cut off if it sends nothing of its frame for ``STALL_S``,
or does not finish the frame within ``timeout_s``. Each connection checks that in its own read,
because those that wait cannot know when a later read begins. Time in which its own connection
waits does not count.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
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
        self.timeout_s = timeout_s
        self._most_bytes = most_bytes
        self._unfinished: dict[Intake, None] = {}  # the oldest first
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for room."""
        return bool(self._changed)

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
            await self._changed.park()

    def _may_read(self, intake: Intake) -> bool:
        share_bytes = self._most_bytes // max(len(self._unfinished), 1)
        fits = intake.held_bytes + LARGE_READ_BYTES <= share_bytes
        has_room = self.held_bytes + LARGE_READ_BYTES <= self._most_bytes
        return has_room or fits or next(iter(self._unfinished), intake) is intake


class Intake:
    """The unfinished frame of one connection.

    Args:
      receive: receives at most the given number of bytes; may be cancelled.
      cut_off: ends the connection, at once.
    """

    def __init__(
        self,
        inbound: Inbound,
        receive: Callable[[int], Awaitable[bytes | bytearray]],
        cut_off: Callable[[], None],
    ) -> None:
        self.held_bytes = 0
        self._inbound = inbound
        self._receive = receive
        self._cut_off = cut_off
        self._read_s = 0.0  # how long it has read this frame

    async def read(self, unfinished_bytes: int) -> bytes | bytearray:
        """Wait for room, and receive the next bytes.

        Args:
          unfinished_bytes: the bytes received of a frame that is not whole.
        """
        if not unfinished_bytes:
            self.close()
            return await self._receive(SMALL_READ_BYTES)
        self._inbound.hold(self, unfinished_bytes)
        await self._inbound.room(self)
        self._inbound.hold(self, unfinished_bytes + LARGE_READ_BYTES)
        while True:
            began_s = trio.current_time()
            with trio.move_on_after(STALL_S) as silence:
                data = await self._receive(LARGE_READ_BYTES)
            self._read_s += trio.current_time() - began_s
            is_late = silence.cancelled_caught or self._read_s > self._inbound.timeout_s
            if is_late and self._inbound.has_waiting:
                _log.warning(
                    "cutting off a peer that does not finish a frame of which %d bytes came",
                    unfinished_bytes,
                )
                self.close()
                self._cut_off()
                await trio.lowlevel.checkpoint()
            if not silence.cancelled_caught:
                return data

    def close(self) -> None:
        """Note that the connection holds no part of a frame any more."""
        self._inbound.hold(self, 0)
        self._read_s = 0.0
