"""The way of a line to the broker of its bundle: the addresses to try, following redirections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from escapement.client.connection.address import Address
from escapement.client.connection.link import Link, Stream
from escapement.client.connection.places import Places
from escapement.client.settings import Settings
from escapement.errors import Disconnected, EscapementError, Unauthenticated
from escapement.protocol.commands import Moved, Owner
from escapement.protocol.limits import FEATURE_BUNDLE, FEATURE_BUNDLES, FEATURE_MOVED

# Opens a byte stream to an address.
Dial = Callable[[Address], Awaitable[Stream]]

# How often one search tries an address again. Each time, news have a higher epoch, or an address
# where none was known.
_MOST_MOVES: Final = 8


class NoOwner(Disconnected):
    """Raised when brokers answer, and none of them serves the bundle at the moment.

    A bundle has no owner while it moves, and until the lease of a dead broker has expired.
    """


class Route:
    """Finds the broker of one bundle.

    Args:
      places: the addresses and owners, which all routes of a client share.
      name: the name of the client.
      bundle: the bundle; None for that of the first broker that welcomes the client.
      described: what errors call the address; None for the address itself.
    """

    def __init__(
        self,
        dial: Dial,
        places: Places,
        name: str,
        settings: Settings,
        bundle: int | None,
        described: str | None = None,
    ) -> None:
        self.bundle = bundle
        self._dial = dial
        self._places = places
        self._name = name
        self._timeout_s = settings.connect_timeout_s
        self._described = described
        self._last: Address | None = None  # of the last link

    def learn(self, news: Moved | Owner) -> None:
        """Note the owner of a bundle."""
        self._places.learn(news)

    async def open(self, token: str) -> Link:
        """Open a link: try each known address once, and what their brokers name.

        After a failed attempt, the next one believes brokers that name lower epochs.

        Raises:
          Unauthenticated: if a broker refuses the token. No other is tried.
          NoOwner: if a broker answers, and no broker serves the bundle at the moment.
          EscapementError: if no attempt succeeds; see ``Link.open``.
        """
        tried: set[Address] = set()
        errors: dict[str, EscapementError] = {}
        named = set() if self.bundle is None else {self.bundle}
        moves, answered = 0, False
        while (address := self._next(tried)) is not None:
            tried.add(address)
            try:
                found = await self._attempt(address, token)
            except Unauthenticated:
                raise
            except EscapementError as error:
                errors[str(error)] = error
                continue
            if isinstance(found, Link):
                bundle = self._places.welcomed(found.welcome.limits, address)
                self.bundle = bundle if self.bundle is None else self.bundle
                self._last = address
                return found
            answered = True
            refusal = _refusal(address, found)
            errors[str(refusal)] = refusal
            if self._places.learn(found) and moves < _MOST_MOVES:
                moves += 1
                tried.discard(next(self._places.candidates(found.bundle, None)))
            named.add(found.bundle)
        for bundle in named:
            self._places.doubt(bundle)
        reason = _one_of(errors)
        raise NoOwner(str(reason)) if answered and isinstance(reason, Disconnected) else reason

    def _next(self, tried: set[Address]) -> Address | None:
        candidates = self._places.candidates(self.bundle, self._last)
        return next((address for address in candidates if address not in tried), None)

    async def _attempt(self, address: Address, token: str) -> Link | Moved:
        features = {FEATURE_MOVED: 1, FEATURE_BUNDLES: 1}
        if self.bundle is not None:
            features[FEATURE_BUNDLE] = self.bundle
        return await Link.open(
            partial(self._dial, address),
            self._described or str(address),
            self._name,
            self._timeout_s,
            token,
            features,
        )


def _refusal(address: Address, moved: Moved) -> EscapementError:
    owner = f"names {moved.address} as its owner" if moved.address else "does not know its owner"
    return Disconnected(f"the broker at {address} does not own bundle {moved.bundle}, and {owner}")


def _one_of(errors: dict[str, EscapementError]) -> EscapementError:
    """Return one error for those of all attempts, by their texts."""
    if len(errors) == 1:
        return next(iter(errors.values()))
    for error in errors.values():
        if not isinstance(error, Disconnected):
            return error
    return Disconnected("; ".join(errors))
