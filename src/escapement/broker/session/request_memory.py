"""The bound on the memory of requests that are carried out aside, for all connections together.

A request takes up to ``MEMORY_FACTOR`` times the bytes of its frame. Its connection *reserves* this
memory before it decodes the frame: for a large frame when its head has come, for a small one when
all of it has come. While it waits, it reads nothing, and the peer feels back-pressure. The memory
is reserved until the request is carried out.

Each connection has ``FREE_BYTES`` beyond the bound, so small requests never wait. Beyond that, a
request is admitted in three cases:

- It fits into the bound, and no connection waits.
- Its connection stays below its share of the bound, so that large requests do not hold up smaller
  ones. Shares shrink with the number of connections that hold something. While connections wait,
  the others share only what the first request in the queue leaves. So a
  steady stream of smaller requests does not keep it waiting for ever.
- Its connection waits the longest, and the request fits into the bound, or no other memory is
  reserved.

A waiting connection holds at most one small read of the frame, which does not count in the bound on
received bytes. So requests that wait, for memory or for room in the output, hold up only other
large requests, and never the publishes and acknowledgements of other connections.
"""

from __future__ import annotations

from typing import Final

import trio

# The memory of requests that each connection may reserve beyond the bound.
FREE_BYTES: Final = 64 * 1024


class RequestMemory:
    """The memory that is reserved for the requests of all connections.

    Invariant: ``reserved_bytes`` is the sum of what the reservations have beyond ``FREE_BYTES``
    each, and ``_holders`` is the number of those that have something beyond it.
    """

    def __init__(self, most_bytes: int) -> None:
        self.reserved_bytes = 0
        self._most_bytes = most_bytes
        self._holders = 0
        # The connections that wait, the one that waits the longest first, and what each needs.
        self._waiting: dict[Reservations, int] = {}
        self._changed = trio.lowlevel.ParkingLot()

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    def change(self, before_bytes: int, after_bytes: int) -> None:
        """Note that a connection has ``after_bytes`` reserved instead of ``before_bytes``."""
        before_bytes, after_bytes = _counted(before_bytes), _counted(after_bytes)
        self.reserved_bytes += after_bytes - before_bytes
        self._holders += (after_bytes > 0) - (before_bytes > 0)
        assert self.reserved_bytes >= 0
        if after_bytes < before_bytes:
            self._changed.unpark_all()

    def may_reserve(self, one: Reservations, more_bytes: int) -> bool:
        """Return whether a connection may reserve ``more_bytes`` now."""
        before_bytes = _counted(one.reserved_bytes)
        after_bytes = _counted(one.reserved_bytes + more_bytes)
        first, first_bytes = next(iter(self._waiting.items()), (one, 0))
        shared_bytes = self._most_bytes
        if first is not one:
            shared_bytes -= min(first_bytes, self._most_bytes)
        if after_bytes <= shared_bytes // (self._holders + (before_bytes == 0)):
            return True
        added_bytes = after_bytes - before_bytes
        fits = self.reserved_bytes + min(added_bytes, self._most_bytes) <= self._most_bytes
        return fits and first is one

    async def wait(self, one: Reservations, more_bytes: int) -> None:
        """Wait until a connection may reserve ``more_bytes``."""
        self._waiting[one] = more_bytes
        try:
            while not self.may_reserve(one, more_bytes):
                await self._changed.park()
        finally:
            del self._waiting[one]
            self._changed.unpark_all()  # another connection waits the longest


class Reservations:
    """The memory that one connection has reserved for its requests."""

    def __init__(self, memory: RequestMemory) -> None:
        self.reserved_bytes = 0
        self._memory = memory
        self._next_bytes = 0  # reserved for the request whose frame is not decoded yet
        self._closed = False

    @property
    def hold_up_others(self) -> bool:
        """Whether others wait for memory, and some is reserved for a frame that is not whole."""
        return self._next_bytes > FREE_BYTES and self._memory.has_waiting

    def may_reserve(self, size_bytes: int) -> bool:
        """Return whether the memory of the next request is reserved, or may be reserved now."""
        return self._next_bytes > 0 or self._memory.may_reserve(self, size_bytes)

    async def reserve(self, size_bytes: int) -> None:
        """Reserve the memory of the next request, once. Wait until that is possible."""
        if self._next_bytes:
            return
        if not self._memory.may_reserve(self, size_bytes):
            await self._memory.wait(self, size_bytes)
        self._next_bytes = size_bytes
        self._change(size_bytes)

    def begin(self) -> int:
        """Note that the next request is decoded. Return its memory, which ``end`` frees."""
        size_bytes, self._next_bytes = self._next_bytes, 0
        return size_bytes

    def end(self, size_bytes: int) -> None:
        """Free the memory of a request that was carried out."""
        self._change(-size_bytes)

    def give_up(self) -> None:
        """Free the memory of the next request, because the connection reads nothing more."""
        self._change(-self.begin())

    def close(self) -> None:
        """Free everything, because the connection has ended."""
        self._change(-self.reserved_bytes)
        self._closed = True

    def _change(self, more_bytes: int) -> None:
        if self._closed:
            return  # requests may end after their connection
        before_bytes = self.reserved_bytes
        self.reserved_bytes += more_bytes
        self._memory.change(before_bytes, self.reserved_bytes)


def _counted(size_bytes: int) -> int:
    return max(size_bytes - FREE_BYTES, 0)
