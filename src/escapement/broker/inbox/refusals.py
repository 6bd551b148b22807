"""The back-off after refusals, and the reason of each refusal.

For tasks that serve many targets. A refused target waits, twice as long after each refusal, and
delays no other target. ``ends_the_broker`` tells errors that end the broker from errors that only
fail an attempt.

Pure: the caller passes the time.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from escapement.errors import EscapementError, StorageError, StorageUnavailable
from escapement.storage.engine.base import TransactionAborted

_FIRST_S: Final = 1.0
_MOST_S: Final = 60.0
# The most refusals that are kept. Targets beyond it are tried each time.
_MOST: Final = 10_000


def ends_the_broker(error: EscapementError) -> bool:
    """Return whether an error puts the stored state, or the right to write it, in question."""
    passes = isinstance(error, StorageUnavailable | TransactionAborted)
    return isinstance(error, StorageError) and not passes


class _Refusal(NamedTuple):
    why: str
    tries: int
    until_s: float


class Refusals:
    """The refused targets, by name."""

    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """The reason of each refusal, by target."""
        return {whom: refusal.why for whom, refusal in self._refusals.items()}

    def refused(self, whom: str, why: str, now_s: float) -> bool:
        """Note a refusal. Return whether its reason is new."""
        before = self._refusals.get(whom)
        if before is None and len(self._refusals) >= _MOST:
            return True
        tries = 0 if before is None else before.tries
        wait_s = min(_FIRST_S * 2.0 ** min(tries, 32), _MOST_S)
        self._refusals[whom] = _Refusal(why, tries + 1, now_s + wait_s)
        return before is None or before.why != why

    def rest(self, whom: str, why: str, until_s: float) -> None:
        """Let a target wait until a given time, without a back-off."""
        if whom in self._refusals or len(self._refusals) < _MOST:
            self._refusals[whom] = _Refusal(why, 0, until_s)

    def next_s(self, now_s: float) -> float:
        """Return when the next waiting target may be tried; infinity if none waits."""
        waiting = (one.until_s for one in self._refusals.values() if one.until_s > now_s)
        return min(waiting, default=math.inf)

    def until_s(self, whom: str) -> float:
        """Return when a target may be tried; 0 if it was not refused."""
        refusal = self._refusals.get(whom)
        return 0.0 if refusal is None else refusal.until_s

    def over(self, whom: str) -> None:
        """Forget the refusal of a target that succeeded, or that no longer exists."""
        self._refusals.pop(whom, None)

    def keep(self, there: set[str]) -> None:
        """Forget the refusals of all other targets, which no longer exist."""
        for whom in self._refusals.keys() - there:
            del self._refusals[whom]
