"""The bound on received bytes that are not carried out yet, for all connections together.

A connection holds its unfinished frame, and whole frames that are carried out in their turn. (The
memory of other requests is in :mod:`request_memory
<escapement.broker.session.request_memory>`.) It reads on only while there is room. The bytes of its
next read count before the read. Two kinds of connections read on without room:

- A connection that holds less than its share of the bound, so that large frames do not hold up
  smaller ones. Shares shrink with the number of connections that hold something.
- The connection whose unfinished frame is the oldest, so that some frame becomes whole. It waits
  only while whole frames fill the bound. These are carried out without another read.

A connection between two frames reads a little without asking, and that does not count. So a request
that fits into one read never waits. A read within a frame takes only a little more than the rest of
the frame.

While other connections wait, a peer is cut off if it sends nothing of its frame for ``STALL_S``,
or does not finish the frame within ``timeout_s``. Each connection checks that in its own read,
because those that wait cannot know when a later read begins. Time in which its own connection
waits does not count. The same holds for a peer whose frame has memory reserved that others wait
for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from escapement.broker.session.request_memory import Reservations
from escapement.event_log import EventLog

_log = EventLog(__name__)

# The largest read of a connection that is in the middle of a frame.
LARGE_READ_BYTES: Final = 256 * 1024
# A peer that is silent for this time in the middle of a frame is cut off while others wait.
STALL_S: Final = 1.0
# One read of a connection between two frames. Each connection may send this beyond the bound.
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
        read_bytes = intake.read_bytes
        share_bytes = self._most_bytes // max(self._holders, 1)
        if (
            self.held_bytes + read_bytes <= self._most_bytes
            or intake.frame_bytes + read_bytes <= share_bytes
        ):
            return True
        if next(iter(self._unfinished), None) is not intake:
            return False
        return self._whole_bytes() + read_bytes <= self._most_bytes

    def _whole_bytes(self) -> int:
        """Return the bytes that do not belong to unfinished frames. O(unfinished frames)."""
        return self.held_bytes - sum(intake.frame_bytes for intake in self._unfinished)


class Intake:
    """The received bytes of one connection.

    Args:
      reservations: the memory that the connection has reserved for its requests.
      receive: receives at most the given number of bytes; may be cancelled.
      cut_off: ends the connection, at once.
    """

    def __init__(
        self,
        inbound: Inbound,
        reservations: Reservations,
        receive: Callable[[int], Awaitable[bytes | bytearray]],
        cut_off: Callable[[], None],
    ) -> None:
        self._inbound = inbound
        self._reservations = reservations
        self._receive = receive
        self._cut_off = cut_off
        # The bytes that the connection holds: its unfinished frame, with the read that continues
        # it, and the frames that are carried out in their turn.
        self.frame_bytes = 0
        self.read_bytes = SMALL_READ_BYTES  # the most bytes of the next read
        self._in_frame = False
        self._read_s = 0.0  # how long it has read this frame

    def _hold(self, frame_bytes: int) -> None:
        before_bytes, self.frame_bytes = self.frame_bytes, frame_bytes
        if before_bytes != frame_bytes:
            self._inbound.change(before_bytes, frame_bytes)

    async def room(self, unfinished_bytes: int, missing_bytes: int) -> None:
        """Wait until the connection may read.

        Args:
          unfinished_bytes: the bytes received of a frame that is not whole.
          missing_bytes: the other bytes of this frame, 0 if that is not known.
        """
        if not unfinished_bytes:
            self.release()
            return
        self._in_frame = True
        self._hold(unfinished_bytes)
        self.read_bytes = min(missing_bytes + SMALL_READ_BYTES, LARGE_READ_BYTES)
        self._inbound.frame_begins(self)
        await self._inbound.room(self)
        self._hold(unfinished_bytes + self.read_bytes)

    async def read(self) -> bytes | bytearray:
        """Receive the next bytes. ``room`` comes before each read."""
        if not self._in_frame:
            return await self._receive(SMALL_READ_BYTES)
        while True:
            began_s = trio.current_time()
            with trio.move_on_after(STALL_S) as silence:
                data = await self._receive(self.read_bytes)
            self._read_s += trio.current_time() - began_s
            is_late = silence.cancelled_caught or self._read_s > self._inbound.timeout_s
            others_wait = self._inbound.has_waiting or self._reservations.hold_up_others
            if is_late and others_wait:
                _log.warning(
                    "connection.cut_off",
                    "cutting off a peer that does not finish a frame of which %d bytes came",
                    self.frame_bytes - self.read_bytes,
                    reason="unfinished_frame",
                )
                self.release()
                self._cut_off()
                await trio.lowlevel.checkpoint()
            if not silence.cancelled_caught:
                return data

    def frame_ends(self) -> None:
        """Note that a frame is whole. The rest of the data belongs to later frames."""
        if self._in_frame:
            self._in_frame, self._read_s = False, 0.0
            self._inbound.frame_ends(self)

    async def reserve(self, size_bytes: int) -> None:
        """Reserve the memory of the next request, once. Wait until that is possible.

        Meanwhile the connection holds at most the small rest of a read, which does not count.
        """
        if not self._reservations.may_reserve(size_bytes):
            self.release()
        await self._reservations.reserve(size_bytes)

    def release(self) -> None:
        """Hold nothing: the frames are carried out, or count as requests."""
        self.frame_ends()
        self._hold(0)
