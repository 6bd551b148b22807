"""The back-off of work that was refused, and the reason of each refusal.

For tasks that do work for many *targets*, named by strings: the inbox relay for topics, the
dead-letter writer for subscriptions. After a failed attempt the task retries the target later,
waits twice as long after each failure, and serves the other targets meanwhile. ``ends_the_broker``
tells errors that end the broker from errors that only fail an attempt.

Pure: the caller passes the time.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from escapement.errors import EscapementError, StorageError, StorageUnavailable
from escapement.storage.engine.base import TransactionAborted

# The wait after the first refusal, and the longest wait.
_FIRST_S: Final = 1.0
_MOST_S: Final = 60.0
# The most refusals that are kept. Further targets have no back-off.
_MOST: Final = 10_000


def ends_the_broker(error: EscapementError) -> bool:
    """Return whether the broker must end, because it cannot trust its stored state or its lease.

    It may continue after an aborted transaction, or when the database cannot be reached.
    """
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
        """The reason why each refused target waits, by target."""
        return {whom: refusal.why for whom, refusal in self._refusals.items()}

    def refused(self, whom: str, why: str, now_s: float) -> bool:
        """Note that an attempt for a target failed. Return whether the reason is new.

        Args:
          whom: the name of the target.
          why: the reason.
        """
        before = self._refusals.get(whom)
        if before is None and len(self._refusals) >= _MOST:
            return True
        tries = 0 if before is None else before.tries
        wait_s = min(_FIRST_S * 2.0 ** min(tries, 32), _MOST_S)
        self._refusals[whom] = _Refusal(why, tries + 1, now_s + wait_s)
        return before is None or before.why != why

    def rest(self, whom: str, why: str, until_s: float) -> None:
        """Let a target wait until a given time; the next refusal begins with the shortest wait."""
        if whom in self._refusals or len(self._refusals) < _MOST:
            self._refusals[whom] = _Refusal(why, 0, until_s)

    def next_s(self, now_s: float) -> float:
        """Return when the first of the waiting targets may be tried; infinity if none waits."""
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
        """Forget the refusals of targets that do not exist any more.

        Args:
          there: the names of the existing targets.
        """
        for whom in self._refusals.keys() - there:
            del self._refusals[whom]
