"""The pause of deliveries after errors of a database.

Nothing is sent for a moment after an error. If the next attempt fails too, the moment is twice as
long. Pure: ``now_s`` is a time of the event loop's clock.
"""

from __future__ import annotations

from typing import Final

from escapement.errors import StorageError, StorageUnavailable

_FIRST_PAUSE_S: Final = 0.25
_LAST_PAUSE_S: Final = 2.0


class Trouble:
    """Whether a database can be used, as far as the last attempts tell."""

    def __init__(self) -> None:
        self.problem: StorageError | None = None  # why nothing is sent; None if all is well
        self.ends_s = 0.0  # when to try again, if there is a problem
        self._pause_s = 0.0
        self._told = ""

    def note(self, error: StorageError, now_s: float, *, pauses: bool = True) -> bool:
        """Note an error. Return whether it is another one than before, and should be logged.

        An error that concerns one table or statement does not stop deliveries.

        Args:
          pauses: whether the error may concern the whole database.
        """
        if pauses and isinstance(error, StorageUnavailable):
            self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LAST_PAUSE_S)
            self.ends_s = now_s + self._pause_s
            self.problem = error
        is_new = str(error) != self._told
        self._told = str(error)
        return is_new

    def has_paused(self, now_s: float) -> bool:
        """End the pause if it is over. Return whether deliveries are to be tried again."""
        if self.problem is None or now_s < self.ends_s:
            return False
        self.problem = None
        return True

    def is_over(self) -> bool:
        """Note that the database works. Return whether there was a problem."""
        was = self.problem is not None
        self.problem, self._pause_s, self._told = None, 0.0, ""
        return was
