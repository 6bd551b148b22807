"""Crashes at the steps of a checkpoint or a compaction of the delayed index."""

from __future__ import annotations

STEPS = ["segment written", "segment fsynced", "manifest tmp written", "manifest renamed"]


class Crash(Exception):
    """Raised by a failpoint to simulate the end of the process."""


class CrashAt:
    """A failpoint that raises at one step, once armed."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.armed = False

    def __call__(self, name: str) -> None:
        assert name in STEPS
        if self.armed and name == self.step:
            raise Crash(name)
