"""What happened to a subscription since this broker serves it: the figures that it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What happened to a subscription since this broker serves it."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    given_back: int = 0
    released: int = 0
    timed_out: int = 0
    dead_lettered: int = 0
    expired: int = 0
    dropped: int = 0
