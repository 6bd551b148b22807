"""Crashes at the failpoints of a checkpoint or a compaction of the delayed index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from escapement import failpoints

STEPS: Final = ["before_fsync", "after_fsync", "before_manifest_swap", "after_manifest_swap"]


class Crash(Exception):
    """Raised by a failpoint to simulate the end of the process."""


def _crash() -> None:
    raise Crash


@contextmanager
def crash_at(point: str) -> Iterator[None]:
    """Raise ``Crash`` at a failpoint until the ``with`` block ends."""
    failpoints.set_actions({point: _crash})
    try:
        yield
    finally:
        failpoints.clear()
