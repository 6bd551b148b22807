"""The admission of connections: how many there may be, in all and of one address.

A connection has a *seat* from the moment it is accepted until it ends. It is *greeting* until its
handshake is done. Anybody can open connections that never finish the handshake. So if too many are
greeting, a new one takes the place of the oldest, and not the other way round: a good client is
done long before it is the oldest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from types import TracebackType
from typing import Final

from escapement.errors import Busy

# One IPv6 host usually has all addresses of such a network.
_IPV6_NETWORK_BITS: Final = 64
# Addresses whose text is parsed once.
_REMEMBERED_ADDRESSES: Final = 4096


class Admission:
    """The seats of all connections.

    Invariant: ``_by_address`` counts the seats of each address that has a bound, and has no zeros.

    Args:
      connections: the most seats.
      connections_per_address: the most seats of one address that is not a loopback address.
      greetings: the most seats whose handshake is not done.
    """

    def __init__(self, connections: int, connections_per_address: int, greetings: int) -> None:
        assert greetings > 0
        self._most = connections
        self._most_per_address = connections_per_address
        self._most_greetings = greetings
        self._seats = 0
        self._by_address: Counter[str] = Counter()
        self._greeting: dict[Seat, None] = {}  # the oldest first

    def admit(self, host: str | None, end: Callable[[], None]) -> Seat:
        """Return a seat for a new connection; O(1).

        Args:
          host: the address of the peer; None if it has none.
          end: ends the connection, if its seat is taken by another one.

        Raises:
          Busy: if all seats, or all of this address, are taken.
        """
        if self._seats >= self._most:
            raise Busy(f"all {self._most} connections are in use")
        address = None if host is None else bounded_part(host)
        if address is not None and self._by_address[address] >= self._most_per_address:
            raise Busy(f"all {self._most_per_address} connections of {address} are in use")
        while len(self._greeting) >= self._most_greetings:
            oldest = next(iter(self._greeting))
            del self._greeting[oldest]
            oldest.end()
        seat = Seat(self, address, end)
        self._seats += 1
        if address is not None:
            self._by_address[address] += 1
        self._greeting[seat] = None
        return seat

    def _greeted(self, seat: Seat) -> None:
        self._greeting.pop(seat, None)

    def _leave(self, seat: Seat) -> None:
        self._greeting.pop(seat, None)
        self._seats -= 1
        if seat.address is not None:
            self._by_address[seat.address] -= 1
            if not self._by_address[seat.address]:
                del self._by_address[seat.address]

    def _check(self) -> None:
        """Assert the invariants."""
        assert 0 <= len(self._greeting) <= self._seats <= self._most
        assert len(self._greeting) <= self._most_greetings
        assert all(0 < count <= self._most_per_address for count in self._by_address.values())
        assert self._by_address.total() <= self._seats


class Seat:
    """The seat of one connection: ``leave``, or the end of a ``with`` block, gives it back."""

    __slots__ = ("_admission", "address", "end")

    def __init__(self, admission: Admission, address: str | None, end: Callable[[], None]) -> None:
        self._admission = admission
        self.address = address
        self.end = end

    def greeted(self) -> None:
        """Note that the handshake is done. Other connections cannot take the seat any more."""
        self._admission._greeted(self)

    def leave(self) -> None:
        """Give the seat back, because the connection has ended."""
        self._admission._leave(self)

    def __enter__(self) -> Seat:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


@lru_cache(_REMEMBERED_ADDRESSES)
def bounded_part(host: str) -> str | None:
    """Return the address or network whose connections count together; None for loopback."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return None
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
    return str(address)
