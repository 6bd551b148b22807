"""The shared transactions of a run that have the groups of several bundles."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import trio

from escapement.errors import OutcomeUnknown
from escapement.storage.commit.shared_writer import SharedWriter, _Place, _SharedConnection

# The counts of a history: all of these transactions, and those with each end.
SHARED: Final = "shared transactions"
STORED: Final = "shared, stored"
NO_REPLY: Final = "shared, no reply"
LOST: Final = "shared, connection lost"
ONE_BY_ONE: Final = "shared, not stored, so written one by one"
KILLED: Final = "shared, process killed"
PAUSED: Final = "shared, process paused"  # it has another end, too
COUNTS: Final = (SHARED, STORED, NO_REPLY, LOST, ONE_BY_ONE, KILLED, PAUSED)
# A transaction takes longer than this only if its process is paused.
_LONGEST_S: Final = 60.0


class Sharing:
    """Counts the shared transactions with several groups, and tells when one begins."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._begun = trio.Event()
        self._engine: object = None

    async def begun(self) -> object:
        """Wait until a transaction begins, and return the engine of its process."""
        await self._begun.wait()
        return self._engine

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the transactions of all processes inside the ``with`` block."""
        usual = SharedWriter._write

        async def write(
            writer: SharedWriter, connection: _SharedConnection, places: Sequence[_Place]
        ) -> None:
            if len(places) == 1:
                return await usual(writer, connection, places)
            self._engine = writer._engine
            self._begun.set()
            self._begun = trio.Event()
            began_s = trio.current_time()
            try:
                await usual(writer, connection, places)
            finally:
                self._counts[SHARED] += 1
                self._counts[_end(writer._run, places[0])] += 1
                self._counts[PAUSED] += trio.current_time() - began_s > _LONGEST_S

        SharedWriter._write = write  # type: ignore[method-assign]
        try:
            yield
        finally:
            SharedWriter._write = usual  # type: ignore[method-assign]


def _end(run: Any, place: _Place) -> str:
    """Return the count of the end of a transaction.

    Args:
      run: the calls of its process.
      place: one of its groups.
    """
    if run.dead:
        return KILLED
    if place.stored:
        return STORED
    error = place.wait._error
    if error is None:
        return ONE_BY_ONE
    return NO_REPLY if isinstance(error, OutcomeUnknown) else LOST
