"""Streams in memory between clients and brokers, which delay, stall and break as the seed decides.

The two directions of a connection are independent. Each delivers its bytes in order, after a
latency that varies, in pieces of any size. A direction can stall for a while: the bytes arrive
later. A connection can be *cut*: from some byte on, nothing arrives in either direction. The cut
may be in the middle of a frame. Both ends notice it at once, or only by their own timeouts.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio
import trio

from histories.history import Sent

_LATENCY_S: Final = (0.0002, 0.02)
_LONGEST_STALL_S: Final = 120.0


@dataclass
class Weather:
    """The probability of each fault, for each piece that is sent."""

    stall: float = 0.0
    cut: float = 0.0
    split: float = 0.0


class _Direction:
    """One direction of a connection: the bytes that are on their way."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pieces: deque[tuple[float, bytes, Sent]] = deque()  # with their arrivals
        self._arrival_s = 0.0
        self._change = trio.Event()
        self.ended = False  # nothing more will be sent
        self.broken = False
        self.last = Sent(0.0, 0)

    def put(self, data: bytes, sent: Sent, stall_s: float, split: bool) -> None:
        latency_s = self._rng.uniform(*_LATENCY_S) + stall_s
        self._arrival_s = max(self._arrival_s, sent.at_s + latency_s)
        at = self._rng.randrange(len(data)) if split else 0
        if at:
            self._pieces.append((self._arrival_s, data[:at], sent))
            self._arrival_s += self._rng.uniform(*_LATENCY_S)
        self._pieces.append((self._arrival_s, data[at:], sent))
        self.changed()

    def lose(self, rng: random.Random) -> None:
        """Lose the bytes on their way, from a random one on."""
        kept = rng.randint(0, len(self._pieces))
        while len(self._pieces) > kept:
            self._pieces.pop()
        if self._pieces and rng.random() < 0.5:
            arrival_s, data, sent = self._pieces.pop()
            self._pieces.append((arrival_s, data[: rng.randint(1, len(data))], sent))

    def changed(self) -> None:
        self._change.set()
        self._change = trio.Event()

    @property
    def is_readable(self) -> bool:
        """Whether bytes have arrived, or none will come any more."""
        if self._pieces:
            return self._pieces[0][0] <= trio.current_time()
        return self.broken or self.ended

    async def take(self, max_bytes: int) -> bytes:
        """Wait for bytes. Return b"" at the end."""
        while True:
            if self._pieces and self._pieces[0][0] <= trio.current_time():
                arrival_s, data, self.last = self._pieces.popleft()
                if len(data) > max_bytes:
                    self._pieces.appendleft((arrival_s, data[max_bytes:], self.last))
                return data[:max_bytes]
            if not self._pieces and self.broken:
                raise trio.BrokenResourceError("the connection is reset, says the simulation")
            if not self._pieces and self.ended:
                return b""
            change = self._change
            if self._pieces:
                with trio.move_on_at(self._pieces[0][0]):
                    await change.wait()
            else:
                await change.wait()


class Cable:
    """One connection between a client and a broker process.

    Args:
      clock_ms: the wall clock of the broker process.
    """

    def __init__(self, network: Network, clock_ms: Callable[[], int]) -> None:
        self.network = network
        self._directions = _Direction(network.rng), _Direction(network.rng)
        self.ended_s: float | None = None  # when it was cut, or an end was closed
        self.is_cut = False
        self.client = End(self, *self._directions, clock_ms)
        self.server = End(self, *reversed(self._directions), clock_ms)

    def end(self) -> None:
        if self.ended_s is None:
            self.ended_s = trio.current_time()

    def cut(self, *, noticed: bool) -> None:
        """Break the connection. If it is not noticed, the ends wait forever."""
        if self.is_cut:
            return
        self.is_cut = True
        self.end()
        for direction in self._directions:
            direction.lose(self.network.rng)
            direction.broken = noticed
            direction.changed()


class End(trio.abc.Stream):
    """One end of a connection."""

    def __init__(
        self, cable: Cable, out: _Direction, into: _Direction, clock_ms: Callable[[], int]
    ) -> None:
        self._cable = cable
        self._out = out
        self._into = into
        self._clock_ms = clock_ms
        self._closed = False

    @property
    def last(self) -> Sent:
        """When the other side sent the bytes that were received last."""
        return self._into.last

    @property
    def is_readable(self) -> bool:
        """Whether a receive would return at once."""
        return self._closed or self._into.is_readable

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        if self._out.broken:
            raise trio.BrokenResourceError
        if self._cable.is_cut or not data:
            return
        network = self._cable.network
        stall_s = network.rng.uniform(0, _LONGEST_STALL_S) if network.chance("stall") else 0.0
        sent = Sent(trio.current_time(), self._clock_ms(), next(network.numbers))
        self._out.put(bytes(data), sent, stall_s, network.chance("split"))
        if network.chance("cut"):
            self._cable.cut(noticed=network.rng.random() < 0.7)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError
        return await self._into.take(max_bytes or 65536)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._cable.end()
            self._out.ended = True
            self._out.changed()
            self._into.broken = True
            self._into.changed()
        await trio.lowlevel.checkpoint()


class ClientStream:
    """The client's end, with the methods of an anyio stream."""

    def __init__(self, cable: Cable, host: tuple[str, int]) -> None:
        self.cable = cable
        self.host = host  # the broker process at the other end

    @property
    def last(self) -> Sent:
        """When the broker sent the bytes that were received last."""
        return self.cable.client.last

    async def receive(self, max_bytes: int = 65536) -> bytes:
        try:
            data = await self.cable.client.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        try:
            await self.cable.client.send_all(item)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        await self.cable.client.aclose()


class Network:
    """The faults and random numbers of all connections."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.weather = Weather()
        self.numbers = itertools.count(1)

    def chance(self, fault: str) -> bool:
        probability = getattr(self.weather, fault)
        return probability > 0 and self.rng.random() < probability
