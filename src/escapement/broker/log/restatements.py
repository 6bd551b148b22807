"""The keys of a topic's restatements, the rows of the log that state earlier messages again.

They are negative, and the more negative the newer. Which is the newest is asked of the log
when one is first needed.
"""

from __future__ import annotations


class Restatements:
    """Gives out keys that no row has; see the module's docstring."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: int | None = None

    @property
    def known(self) -> bool:
        """Whether ``next`` can be asked for."""
        return self._last is not None

    def know(self, lowest: int) -> None:
        """The newest restatement in the log has this key; 0: there is none."""
        if self._last is None:
            self._last = lowest

    def next(self) -> int:
        """A key for a restatement that no other has."""
        assert self._last is not None
        self._last -= 1
        return self._last
