"""Counters of one subscription."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Numbers of messages, counted since this broker process began to serve the subscription."""

    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    nacked: int = 0
    released: int = 0
    timed_out: int = 0
    dead_lettered: int = 0
    expired: int = 0
    dropped: int = 0
