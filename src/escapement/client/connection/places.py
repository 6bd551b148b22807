"""The places of brokers: their addresses, and which of them owns which bundle of topics.

A *bundle* is a set of topics with one owner. Most databases have a single bundle. Owners change:
the epoch of a bundle grows with each new owner, so news with a lower epoch are stale and ignored.

The exception is a *doubted* place. If no known address leads to the owner of a bundle, the client
may remember a wrong one: for example, the database was restored from a dump and has lower epochs.
So the client then believes the next news, whatever their epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from escapement.client.connection.address import Address
from escapement.errors import InvalidRequest
from escapement.protocol.commands import Moved, Owner
from escapement.protocol.limits import LIMIT_BUNDLE, LIMIT_BUNDLES, LIMIT_EPOCH, MAX_BUNDLE

# The epoch of a place that is not known, or is doubted. All news have a higher one.
_NO_EPOCH: Final = -1


class _Place(NamedTuple):
    """The owner of a bundle in an epoch; None if its address is not known."""

    epoch: int
    address: Address | None


class Places:
    """The addresses that a client knows, in memory and without I/O.

    Args:
      given: the addresses from the application, at least one. They stay known.

    Attributes:
      count: the number of bundles, as far as it is known.
    """

    def __init__(self, given: Sequence[Address]) -> None:
        assert given, "a client needs an address"
        self.given = tuple(given)
        self.count = 1
        # By bundle. The protocol bounds the ids of bundles.
        self._owners: dict[int, _Place] = {}

    def welcomed(self, limits: Mapping[str, Any], at: Address) -> int:
        """Note the number of bundles and an owner. Return the bundle of the connection.

        Args:
          limits: the limits in Welcome.
          at: the address of the broker.
        """
        self._note_count(limits.get(LIMIT_BUNDLES, 1))
        bundle, epoch = limits.get(LIMIT_BUNDLE, 0), limits.get(LIMIT_EPOCH)
        if type(bundle) is not int or not 0 <= bundle <= MAX_BUNDLE:
            return 0
        if type(epoch) is int and epoch >= 0:
            self._note_owner(bundle, epoch, at)
        return bundle

    def learn(self, news: Moved | Owner) -> bool:
        """Note the owner of a bundle. Return whether its address is worth another attempt.

        That is so if the epoch is new, or no address was known for it. News with a lower epoch than
        earlier news are stale, and change nothing. Of news with the same epoch the latest count,
        because a broker that hands a bundle over tells who the next owner will probably be.
        """
        self._note_count(news.bundles if isinstance(news, Owner) else news.bundle + 1)
        return self._note_owner(news.bundle, news.epoch, self._parsed(news.address))

    def doubt(self, bundle: int) -> None:
        """Believe the next news about a bundle, because no address led to its owner.

        The address of the place stays known, until news name another one.
        """
        if bundle in self._owners:
            self._owners[bundle] = self._owners[bundle]._replace(epoch=_NO_EPOCH)

    def candidates(self, bundle: int | None, last: Address | None) -> Iterator[Address]:
        """Yield all addresses at which the broker of a bundle may be, the likeliest first.

        Args:
          bundle: the bundle; None for any.
          last: the address of the last connection.
        """
        likely = [last, *self.given, *(place.address for place in self._owners.values())]
        if bundle in self._owners:
            likely.insert(0, self._owners[bundle].address)
        return (address for address in dict.fromkeys(likely) if address is not None)

    def _note_owner(self, bundle: int, epoch: int, address: Address | None) -> bool:
        before = self._owners.get(bundle, _Place(_NO_EPOCH, None))
        if epoch < before.epoch or (epoch == before.epoch and address is None):
            return False
        kept = before.address if before.epoch == _NO_EPOCH else None
        self._owners[bundle] = _Place(epoch, address or kept)
        return address is not None and (epoch > before.epoch or before.address is None)

    def _note_count(self, count: Any) -> None:
        if type(count) is int and self.count < count <= MAX_BUNDLE + 1:
            self.count = count

    def _parsed(self, text: str) -> Address | None:
        """Return the address that a broker names, with the same use of TLS as the given ones."""
        try:
            return self.given[0].beside(text) if text else None
        except InvalidRequest:
            return None
