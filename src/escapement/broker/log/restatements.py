"""The keys of a topic's restatements, the log rows that state earlier messages again.

The keys are negative, and newer rows have lower keys. The broker reads the lowest key in the log
when a topic first needs a new key.
"""

from __future__ import annotations


class Restatements:
    """A generator of unused restatement keys."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: int | None = None

    @property
    def known(self) -> bool:
        """Whether ``know`` was called, so that ``next`` can return an unused key."""
        return self._last is not None

    def know(self, lowest: int) -> None:
        """Set the key of the newest restatement in the log, 0 if there is none; only once."""
        if self._last is None:
            self._last = lowest

    def next(self) -> int:
        """Return an unused key for a restatement."""
        assert self._last is not None
        self._last -= 1
        return self._last
