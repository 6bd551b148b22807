"""The protocol of the checks of features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from histories.history import History


class Check(Protocol):
    """The answers to the client of a feature, and the rules that the feature must keep."""

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield what must still happen."""

    def violations(self, history: History) -> Iterator[str]:
        """Yield a line for each violation."""
