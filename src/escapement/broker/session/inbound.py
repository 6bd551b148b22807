"""The bound on received bytes that are not carried out yet, for all connections together.

A connection holds its unfinished frame, and the requests that it has sent and that wait. It reads
on only while there is room. The bytes of its next read count before the read. Two kinds of
connections read on without room:

- A connection that holds less than its share of the bound, so that large frames do not hold up
  smaller ones. Shares shrink with the number of connections that hold something.
- The connection whose unfinished frame is the oldest, so that some frame becomes whole. It waits
  only while whole frames fill the bound. These are carried out without another read.

A connection between two frames, without large requests, reads a little without asking. So a
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
# One read of a connection between two frames. Each connection may send this beyond the bound, and
# hold requests of this size.
SMALL_READ_BYTES: Final = 64 * 1024


class Inbound:
    """The received bytes of all connections.

    Invariant: ``held_bytes`` is the sum of what the intakes hold, and ``_holders`` is the number of
    intakes that hold something.
    """

    def __init__(self, most_bytes: int, timeout_s: float) -> None:
        assert most_bytes >= LARGE_READ_BYTES
        self.held_bytes = 0
        self.timeout_s = timeout_s
        self._most_bytes = most_bytes
        self._holders = 0
        self._unfinished: dict[Intake, None] = {}  # the oldest frame first
        self._waiting = 0  # the number of connections in ``room``
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for room."""
        return self._waiting > 0

    def change(self, before_bytes: int, after_bytes: int) -> None:
        """Note that an intake holds ``after_bytes`` instead of ``before_bytes``."""
        self.held_bytes += after_bytes - before_bytes
        self._holders += (after_bytes > 0) - (before_bytes > 0)
        assert self.held_bytes >= 0
        if after_bytes < before_bytes:
            self._changed.unpark_all()

    def frame_begins(self, intake: Intake) -> None:
        """Note that an intake is in the middle of a frame."""
        self._unfinished.setdefault(intake)

    def frame_ends(self, intake: Intake) -> None:
        """Note that an intake's frame is whole, or that its connection has ended."""
        if self._unfinished.pop(intake, intake) is None:
            self._changed.unpark_all()  # another frame is the oldest

    async def room(self, intake: Intake) -> None:
        """Wait until the intake may read on."""
        if self._may_read(intake):
            return
        self._waiting += 1
        try:
            while not self._may_read(intake):
                await self._changed.park()
        finally:
            self._waiting -= 1

    def _may_read(self, intake: Intake) -> bool:
        total_bytes = self.held_bytes + LARGE_READ_BYTES
        share_bytes = self._most_bytes // max(self._holders, 1)
        if total_bytes <= self._most_bytes or intake.held_bytes + LARGE_READ_BYTES <= share_bytes:
            return True
        if next(iter(self._unfinished), None) is not intake:
            return False
        return self._whole_bytes() + LARGE_READ_BYTES <= self._most_bytes

    def _whole_bytes(self) -> int:
        """Return the bytes that do not belong to unfinished frames. O(unfinished frames)."""
        return self.held_bytes - sum(intake.frame_bytes for intake in self._unfinished)


class Intake:
    """The received bytes of one connection.

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
        self._inbound = inbound
        self._receive = receive
        self._cut_off = cut_off
        self.frame_bytes = 0  # of the unfinished frame, with the read that continues it
        self._request_bytes = 0
        self._in_frame = False
        self._closed = False
        self._read_s = 0.0  # how long it has read this frame

    @property
    def held_bytes(self) -> int:
        """The bytes that this connection holds."""
        return self.frame_bytes + self._request_bytes

    def _hold(self, frame_bytes: int, request_bytes: int) -> None:
        if self._closed:
            return  # requests may end after their connection
        before_bytes = self.held_bytes
        self.frame_bytes, self._request_bytes = frame_bytes, request_bytes
        self._inbound.change(before_bytes, self.held_bytes)

    # -- reading -------------------------------------------------------------------

    async def room(self, unfinished_bytes: int) -> None:
        """Wait until the connection may read.

        Args:
          unfinished_bytes: the bytes received of a frame that is not whole.
        """
        if not unfinished_bytes:
            self.frame_ends()
        self._in_frame = unfinished_bytes > 0
        if self.frame_bytes != unfinished_bytes:
            self._hold(unfinished_bytes, self._request_bytes)
        if self._in_frame:
            self._inbound.frame_begins(self)
            await self._inbound.room(self)
            self._hold(unfinished_bytes + LARGE_READ_BYTES, self._request_bytes)
        elif self._request_bytes > SMALL_READ_BYTES:
            await self._inbound.room(self)

    async def read(self) -> bytes | bytearray:
        """Receive the next bytes. ``room`` comes before each read."""
        if not self._in_frame:
            return await self._receive(SMALL_READ_BYTES)
        while True:
            began_s = trio.current_time()
            with trio.move_on_after(STALL_S) as silence:
                data = await self._receive(LARGE_READ_BYTES)
            self._read_s += trio.current_time() - began_s
            is_late = silence.cancelled_caught or self._read_s > self._inbound.timeout_s
            if is_late and self._inbound.has_waiting:
                _log.warning(
                    "cutting off a peer that does not finish a frame of which %d bytes came",
                    self.frame_bytes - LARGE_READ_BYTES,
                )
                self.close()
                self._cut_off()
                await trio.lowlevel.checkpoint()
            if not silence.cancelled_caught:
                return data

    def frame_ends(self) -> None:
        """Note that a frame is whole. The rest of what was read belongs to later frames."""
        if self._in_frame:
            self._in_frame, self._read_s = False, 0.0
            self._inbound.frame_ends(self)

    # -- requests ------------------------------------------------------------------

    def begin_request(self, size_bytes: int) -> None:
        """Count a request until ``end_request``, now that its frame is whole."""
        self._hold(max(self.frame_bytes - size_bytes, 0), self._request_bytes + size_bytes)

    def end_request(self, size_bytes: int) -> None:
        """Note that a request was carried out."""
        self._hold(self.frame_bytes, self._request_bytes - size_bytes)

    def close(self) -> None:
        """Release everything, because the connection has ended."""
        self._inbound.frame_ends(self)
        self._hold(0, 0)
        self._closed = True
