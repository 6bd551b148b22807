"""The places of brokers: their addresses, and which of them owns which bundle of topics.

A *bundle* is a set of topics with one owner. Most databases have a single bundle. Owners change:
the epoch of a bundle grows with each new owner, so news with a lower epoch are stale and ignored.

The exception is a *doubted* place. If no known address leads to the owner of a bundle, the client
may remember a wrong one: for example, the database was restored from a dump and has lower epochs.
So the client then believes the next news, whatever their epoch.

An address that brokers have named stays known after another one is named, as one of the last few.
For example, a broker that stops names the next owner, which still names the former one for a
second.

An address is *silent* if its broker did not answer in time: the process hangs, or its machine is
lost. Other brokers name it as an owner until its lease has expired. So the client tries the other
addresses first, and waits at the silent one only for an eighth of the time of its silence.
Otherwise an attempt there would delay the next owner for ``connect_timeout_s``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from escapement.client.connection.address import Address
from escapement.errors import InvalidRequest, OtherDatabase
from escapement.protocol.commands import Moved, Owner
from escapement.protocol.limits import (
    LIMIT_BUNDLE,
    LIMIT_BUNDLES,
    LIMIT_EPOCH,
    LIMIT_LOG,
    MAX_BUNDLE,
)

# The epoch of a place that is not known, or is doubted. All news have a higher one.
_NO_EPOCH: Final = -1
# The addresses that a client remembers because brokers have named them: more than there are nodes,
# and few enough to try them all.
_MOST_NAMED: Final = 8
# The shortest wait for an answer at a silent address, and the share of its silence for which the
# client waits there if that is longer. So even a broker that always answers late is reached.
_SILENT_WAIT_S: Final = 1.0
_SILENT_SHARE: Final = 1 / 8
# The addresses of other databases that a client remembers, to log each once.
_MOST_ELSEWHERE: Final = 1000


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
      log: the id of the log of the first broker that told it; None until then.
    """

    def __init__(self, given: Sequence[Address]) -> None:
        assert given, "a client needs an address"
        self.given = tuple(given)
        self.count = 1
        self.log: bytes | None = None
        self._log_at: Address | None = None  # the address of the broker that told the log
        self._elsewhere: set[Address] = set()  # at which brokers have another log
        # By bundle. The protocol bounds the ids of bundles.
        self._owners: dict[int, _Place] = {}
        self._named: dict[Address, None] = {}  # by brokers as owners; the latest last
        self._silent_since_s: dict[Address, float] = {}

    def welcomed(self, limits: Mapping[str, Any], at: Address) -> bool:
        """Note the log, the number of bundles and an owner from a Welcome.

        Args:
          limits: the limits in Welcome.
          at: the address of the broker.

        Returns:
          False if an earlier broker told another log. Then nothing is noted.
        """
        log = limits.get(LIMIT_LOG)  # a broker of the version before tells none
        if type(log) is bytes:
            if self.log is None:
                self.log, self._log_at = log, at
            if log != self.log:
                return False
        self._note_count(limits.get(LIMIT_BUNDLES, 1))
        epoch = limits.get(LIMIT_EPOCH)
        if type(epoch) is int and epoch >= 0:
            self._note_owner(bundle_in(limits), epoch, at)
        return True

    def other_database(self, at: Address) -> tuple[OtherDatabase, bool]:
        """Return the error for a broker with another log, and whether it is the first at ``at``."""
        is_new = at not in self._elsewhere
        if len(self._elsewhere) < _MOST_ELSEWHERE:
            self._elsewhere.add(at)
        return OtherDatabase(
            f"The broker at {at} uses another database than the one at {self._log_at}. Connect only"
            " to addresses of brokers on one database."
        ), is_new

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

    def note_silence(self, address: Address, now_s: float) -> None:
        """Note that no broker answered at an address in time."""
        self._silent_since_s.setdefault(address, now_s)
        if len(self._silent_since_s) > len(self.given) + _MOST_NAMED:
            del self._silent_since_s[next(iter(self._silent_since_s))]

    def note_answer(self, address: Address) -> None:
        """Note that a broker has answered at an address."""
        self._silent_since_s.pop(address, None)

    def patience_s(self, address: Address, now_s: float) -> float | None:
        """Return how long to wait for a broker at an address; None: as long as at any other."""
        since_s = self._silent_since_s.get(address)
        if since_s is None or set(self.candidates(None, None)) <= {address}:
            return None
        return max(_SILENT_WAIT_S, (now_s - since_s) * _SILENT_SHARE)

    def owner_of(self, bundle: int) -> Address | None:
        """Return the address of the owner of a bundle, as far as it is known."""
        return self._owners[bundle].address if bundle in self._owners else None

    def candidates(self, bundle: int | None, last: Address | None) -> Iterator[Address]:
        """Yield all addresses at which the broker of a bundle may be, the likeliest first.

        Silent addresses are the last.

        Args:
          bundle: the bundle; None for any.
          last: the address of the last connection.
        """
        likely = [last, *self.given, *(place.address for place in self._owners.values())]
        likely += reversed(self._named)
        if bundle in self._owners:
            likely.insert(0, self._owners[bundle].address)
        known = [address for address in dict.fromkeys(likely) if address is not None]
        return iter(sorted(known, key=self._silent_since_s.__contains__))

    def _note_owner(self, bundle: int, epoch: int, address: Address | None) -> bool:
        before = self._owners.get(bundle, _Place(_NO_EPOCH, None))
        if epoch < before.epoch or (epoch == before.epoch and address is None):
            return False
        kept = before.address if before.epoch == _NO_EPOCH else None
        self._owners[bundle] = _Place(epoch, address or kept)
        if address is not None:
            self._named.pop(address, None)
            self._named[address] = None
            if len(self._named) > _MOST_NAMED:
                del self._named[next(iter(self._named))]
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


def bundle_in(limits: Mapping[str, Any]) -> int:
    """Return the bundle of a connection, by the limits in its Welcome."""
    bundle = limits.get(LIMIT_BUNDLE, 0)
    return bundle if type(bundle) is int and 0 <= bundle <= MAX_BUNDLE else 0
