"""What every check of a feature has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from histories.history import History


class Check(Protocol):
    """What the client of a feature was told, and the rules that the feature must keep."""

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield what must still happen."""

    def violations(self, history: History) -> Iterator[str]:
        """Yield a line for each violation."""
