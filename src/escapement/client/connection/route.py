"""The way of a line to the broker of its bundle: the addresses to try, following redirections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import anyio

from escapement.client.connection.address import Address
from escapement.client.connection.link import Link, Stream
from escapement.client.connection.places import Places, bundle_in
from escapement.client.settings import Settings
from escapement.errors import (
    Disconnected,
    EscapementError,
    NoOwner,
    OtherDatabase,
    Unauthenticated,
)
from escapement.event_log import EventLog
from escapement.protocol.commands import Moved, Owner
from escapement.protocol.limits import (
    FEATURE_ACK_DEADLINES,
    FEATURE_BUNDLE,
    FEATURE_BUNDLES,
    FEATURE_LOG,
    FEATURE_MOVED,
    FEATURE_OBSERVER,
    FEATURE_REASON,
)

_log = EventLog(__name__)

# The features that clients of an earlier version do not understand.
_UNDERSTOOD: Final = (FEATURE_MOVED, FEATURE_BUNDLES, FEATURE_ACK_DEADLINES)

# Opens a byte stream to an address.
Dial = Callable[[Address], Awaitable[Stream]]

# How often one search tries an address again. Each time, news have a higher epoch, or an address
# where none was known.
_MOST_MOVES: Final = 8


class Route:
    """Finds the broker of one bundle.

    Args:
      places: the addresses and owners, which all routes of a client share.
      name: the name of the client.
      bundle: the bundle; None for that of the first broker that welcomes the client.
      described: what errors call the address; None for the address itself.

    Attributes:
      misled: whether each address that was tried last has a broker of another database.
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
        self.misled = False
        self._dial = dial
        self._places = places
        self._name = name
        self._timeout_s = settings.connect_timeout_s
        self._reason = settings.reason
        self._observes = settings.observer
        self._described = described
        self._last: Address | None = None  # of the last link

    def learn(self, news: Moved | Owner) -> None:
        """Note the owner of a bundle."""
        self._places.learn(news)

    def fell_silent(self) -> None:
        """Note that the broker of the last link has gone silent. Others may be its heirs."""
        if self._last is not None:
            self._places.note_silence(self._last, anyio.current_time())

    async def open(self, token: str) -> Link:
        """Open a link: try each known address once, and what their brokers name.

        After a failed attempt, the next one believes brokers that name lower epochs.

        Raises:
          Unauthenticated: if a broker refuses the token. No other is tried.
          NoOwner: if a broker answers, and no broker serves the bundle at the moment.
          OtherDatabase: if no attempt succeeds, and at an address from the application is a broker
            of another database.
          EscapementError: if no attempt succeeds; see ``Link.open``.
        """
        tried: set[Address] = set()
        others: dict[Address, OtherDatabase] = {}
        errors: dict[str, EscapementError] = {}
        named = set() if self.bundle is None else {self.bundle}
        moves, answered = 0, False
        while (address := self._next(tried)) is not None:
            tried.add(address)
            try:
                found = await self._attempt(address, token)
            except Unauthenticated:
                raise
            except OtherDatabase as error:
                others[address] = error
                continue
            except EscapementError as error:
                errors[str(error)] = error
                continue
            if isinstance(found, Link):
                self._last = address
                return found
            answered = True
            refusal = _refusal(address, found)
            errors[str(refusal)] = refusal
            if self._places.learn(found) and moves < _MOST_MOVES:
                moves += 1
                tried -= {self._places.owner_of(found.bundle)}
            named.add(found.bundle)
        for bundle in named:
            self._places.doubt(bundle)
        self.misled = not errors
        for address in self._places.given:
            if address in others:
                raise others[address]
        errors |= {str(error): error for error in others.values()}
        reason = _one_of(errors)
        raise NoOwner(str(reason)) if answered and isinstance(reason, Disconnected) else reason

    def _next(self, tried: set[Address]) -> Address | None:
        candidates = self._places.candidates(self.bundle, self._last)
        return next((address for address in candidates if address not in tried), None)

    async def _attempt(self, address: Address, token: str) -> Link | Moved:
        features: dict[str, int | bytes | str] = dict.fromkeys(_UNDERSTOOD, 1)
        if self.bundle is not None:
            features[FEATURE_BUNDLE] = self.bundle
        if self._places.log is not None:
            features[FEATURE_LOG] = self._places.log
        if self._reason:
            features[FEATURE_REASON] = self._reason
        if self._observes:
            features[FEATURE_OBSERVER] = 1
        began_s = anyio.current_time()
        timeout_s = self._timeout_s
        if (patience_s := self._places.patience_s(address, began_s)) is not None:
            timeout_s = min(timeout_s, patience_s)
        try:
            found = await Link.open(
                partial(self._dial, address),
                self._described or str(address),
                self._name,
                timeout_s,
                token,
                features,
            )
        except OtherDatabase:
            raise self._other_database(address) from None
        except Disconnected:
            if anyio.current_time() >= began_s + timeout_s:
                self._places.note_silence(address, began_s)
            raise
        self._places.note_answer(address)
        if isinstance(found, Link):
            if not self._places.welcomed(found.welcome.limits, address):
                await found.discard()
                raise self._other_database(address)
            if self.bundle is None:
                self.bundle = bundle_in(found.welcome.limits)
        return found

    def _other_database(self, address: Address) -> OtherDatabase:
        error, is_new = self._places.other_database(address)
        if is_new:
            _log.warning("client.other_database", "%s", error, address=str(address))
        return error


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
