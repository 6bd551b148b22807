"""The bundles whose brokers could not start on this node, and when the node tries each again.

A broker that cannot begin the log of its bundle needs help from outside: a table set, or a
connection to the database. The other bundles go on meanwhile, and other nodes may take the bundle.
The node tries it again at growing intervals.
"""

from __future__ import annotations

from typing import Final

from escapement.errors import MissingRight, StorageError
from escapement.storage.engine.base import NoConnectionLeft

# The first and the longest time between two attempts. Each attempt is some transactions.
FIRST_PAUSE_S: Final = 2.0
LAST_PAUSE_S: Final = 60.0


def may_start_later(error: StorageError, alone: bool) -> bool:
    """Return whether a bundle that cannot start because of ``error`` is tried again.

    Args:
      alone: whether the node has no other bundle, and has just been started. Then a missing right
        is an error for the operator.
    """
    if isinstance(error, MissingRight):
        return not alone
    return isinstance(error, NoConnectionLeft)


class FailedStarts:
    """The bundles that could not start, each with the next attempt. Pure."""

    def __init__(self) -> None:
        self._next_s: dict[int, float] = {}
        self._pause_s: dict[int, float] = {}

    def add(self, bundle_id: int, now_s: float) -> float:
        """Note that a bundle could not start. Return the seconds until the next attempt."""
        pause_s = min(2 * self._pause_s.get(bundle_id, FIRST_PAUSE_S / 2), LAST_PAUSE_S)
        self._pause_s[bundle_id] = pause_s
        self._next_s[bundle_id] = now_s + pause_s
        return pause_s

    def forget(self, bundle_id: int) -> None:
        """Note that a bundle has started."""
        self._next_s.pop(bundle_id, None)
        self._pause_s.pop(bundle_id, None)

    def resting(self, now_s: float) -> set[int]:
        """Return the bundles that are not tried yet."""
        return {bundle_id for bundle_id, next_s in self._next_s.items() if now_s < next_s}
