"""How long whoever was refused waits before it tries again, and what refused it.

For tasks that serve many: one that is refused waits, twice as long each time, and holds up
nobody else. What ends the broker is told apart from what only ends a try.

Pure: the time arrives as an argument.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from escapement.errors import EscapementError, StorageError, StorageUnavailable
from escapement.storage.engine.base import TransactionAborted

_FIRST_S: Final = 1.0
_MOST_S: Final = 60.0
# Of so many refusals is known for how long; others are tried each time.
_MOST: Final = 10_000


def ends_the_broker(error: EscapementError) -> bool:
    """Whether what is durable, or who may write it, is in question: nobody may go on."""
    passes = isinstance(error, StorageUnavailable | TransactionAborted)
    return isinstance(error, StorageError) and not passes


class _Refusal(NamedTuple):
    why: str
    tries: int
    until_s: float


class Refusals:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}

    @property
    def reasons(self) -> dict[str, str]:
        """Why each of those that wait was refused."""
        return {whom: refusal.why for whom, refusal in self._refusals.items()}

    def refused(self, whom: str, why: str, now_s: float) -> bool:
        """It was refused; returns whether that is news."""
        before = self._refusals.get(whom)
        if before is None and len(self._refusals) >= _MOST:
            return True
        tries = 0 if before is None else before.tries
        wait_s = min(_FIRST_S * 2.0 ** min(tries, 32), _MOST_S)
        self._refusals[whom] = _Refusal(why, tries + 1, now_s + wait_s)
        return before is None or before.why != why

    def rest(self, whom: str, why: str, until_s: float) -> None:
        """It was told when it may be tried again."""
        if whom in self._refusals or len(self._refusals) < _MOST:
            self._refusals[whom] = _Refusal(why, 0, until_s)

    def next_s(self, now_s: float) -> float:
        """When the next of those that still wait may be tried; infinity if none waits."""
        waiting = (one.until_s for one in self._refusals.values() if one.until_s > now_s)
        return min(waiting, default=math.inf)

    def until_s(self, whom: str) -> float:
        """From when on it may be tried; 0 if it was not refused."""
        refusal = self._refusals.get(whom)
        return 0.0 if refusal is None else refusal.until_s

    def over(self, whom: str) -> None:
        """It was not refused this time, or is gone."""
        self._refusals.pop(whom, None)

    def keep(self, there: set[str]) -> None:
        """All others are gone."""
        for whom in self._refusals.keys() - there:
            del self._refusals[whom]
