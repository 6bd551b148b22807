"""Problems of the machine, the data directory and the databases of a running broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import trio

from escapement.clock import Clock
from escapement.doctor.finding import Finding, warning
from escapement.storage.blocking import Run

# How long the result of the checks counts. They take some milliseconds for each database.
_GOOD_FOR_MS: Final = 60_000

# Makes the checks. Blocking.
Check = Callable[[], Sequence[Finding]]


class Checked(NamedTuple):
    """The bad findings of the checks, and when they were made."""

    at_ms: int
    findings: list[Finding]


class Findings:
    """The findings of a broker about itself. The checks are made when asked, once a minute at most.

    Args:
      check: makes the checks, in a thread.
    """

    def __init__(self, check: Check, clock: Clock, run: Run) -> None:
        self._check = check
        self._clock = clock
        self._run = run
        self._checking = trio.Lock()
        self._last: Checked | None = None
        self._due_ms = clock.lease_ms()  # when the last result is too old

    async def read(self) -> Checked:
        """Return the bad findings, which are a minute old at most."""
        async with self._checking:
            if self._last is None or self._clock.lease_ms() >= self._due_ms:
                at_ms, due_ms = self._clock.now_ms(), self._clock.lease_ms() + _GOOD_FOR_MS
                self._last = Checked(at_ms, await self._run(self._bad_findings))
                self._due_ms = due_ms
            return self._last

    def _bad_findings(self) -> list[Finding]:
        """Make the checks. A bug in one of them must not end the broker. Blocking."""
        try:
            return [one for one in self._check() if one.is_bad]
        except Exception as failure:
            text = f"the checks failed: {failure!r}"
            return [warning("checks", text, "Run `escapement doctor`, and report the bug.")]
