"""Timers of a subscription, on one wheel: retries and ack timeouts.

A *retry* is the timer of a message that waits for its next attempt. A *watch* is the timer of a
delivery, for the first ack deadline of its messages.

Pure. It is not told of acknowledgements, so a message may have been acknowledged by the time its
timer fires. All retries use this wheel, whatever their reason. V4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.priorities.ready import Rows
from escapement.message import Int64s
from escapement.timewheel import Entries, TimingWheel

# The resolution of retries and ack timeouts. It does not depend on the topic's tick: these waits
# are a few seconds, and a coarse tick for delays must not stretch them.
TIMER_TICK_MS: Final = 10
# The tag of a retry has the attempts in its lower 16 bits and the due time above them.
_ATTEMPTS: Final = 0xFFFF
# Watches of finished deliveries are removed when the wheel has more timers than this and four for
# each held message and unfinished delivery.
_TIDY_TIMERS: Final = 16_384


class Fired(NamedTuple):
    """Timers that fired: ids of deliveries past a deadline, and messages to retry."""

    deliveries: list[int]
    rows: Rows


class Retries:
    """The timer wheel of one subscription."""

    __slots__ = ("_wheel",)

    def __init__(self, now_ms: int) -> None:
        self._wheel = TimingWheel(TIMER_TICK_MS, now_ms)

    # -- the wheel -------------------------------------------------------------------

    def wait(self, rows: Rows, next_ms: Int64s) -> Rows:
        """Set timers to retry messages at ``next_ms``; return the messages whose time has come.

        There are such messages if the wall clock was set back a little, so that the wheel is ahead
        of it.
        """
        tags = (rows.due_ms << 16) | rows.attempts
        labels = None if rows.traits is None else rows.traits.astype(np.int64)
        elapsed = self._wheel.insert(next_ms, rows.offsets, tags, labels)
        return Rows.none() if elapsed is None else _timed(elapsed)

    def watch(self, delivery_ids: Sequence[int], deadlines_ms: Sequence[int]) -> None:
        """Set the timer of each delivery; ``advance`` returns its id at its deadline."""
        soonest_ms = self._wheel.now_ms + 1
        when_ms = np.array([max(deadline_ms, soonest_ms) for deadline_ms in deadlines_ms])
        ids = np.array([-delivery_id for delivery_id in delivery_ids])
        elapsed = self._wheel.insert(when_ms, ids)
        assert elapsed is None

    def _put_again(self, timers: Entries) -> None:
        """Put timers into the wheel; overdue timers fire at its next tick."""
        when_ms = np.maximum(timers.when_ms, self._wheel.now_ms + 1)
        elapsed = self._wheel.insert(when_ms, timers.ids, timers.tags, timers.labels)
        assert elapsed is None

    def is_untidy(self, live: int) -> bool:
        """Return whether most timers are watches of finished deliveries.

        Args:
          live: the number of held messages and unfinished deliveries.
        """
        return len(self._wheel) > _TIDY_TIMERS + 4 * live

    def tidy(self, delivery_ids: Int64s) -> None:
        """Remove the watches of finished deliveries; with a long ack wait, they accumulate.

        Args:
          delivery_ids: the deliveries that are not finished.
        """
        waiting = self._wheel.drain()
        self._put_again(waiting.take((waiting.ids >= 0) | np.isin(-waiting.ids, delivery_ids)))

    def advance(self, now_ms: int) -> Fired | None:
        """Advance to ``now_ms``; return the timers that fired, None if none did."""
        fired = self._wheel.advance(max(now_ms, self._wheel.now_ms))
        if not len(fired):
            return None
        retry = fired.ids >= 0
        rows = _timed(fired.take(np.flatnonzero(retry)))
        return Fired((-fired.ids[~retry]).tolist(), rows)

    def next_wake_ms(self) -> int | None:
        """Return when ``advance`` has something to do; None if never."""
        return self._wheel.next_wake_ms()

    def rewind(self, now_ms: int) -> None:
        """Rebuild the wheel after the wall clock was set back; timers keep their times."""
        waiting = self._wheel.drain()
        self._wheel = TimingWheel(TIMER_TICK_MS, now_ms)
        self._put_again(waiting)

    def live(self, ttl_ms: int) -> None:
        """End each retry no later than ``ttl_ms`` after the due time of its message; O(n)."""
        waiting = self._wheel.drain()
        if waiting.tags is not None:
            ends_ms = np.minimum(waiting.when_ms, (waiting.tags >> 16) + ttl_ms)
            when_ms = np.where(waiting.ids >= 0, ends_ms, waiting.when_ms)
            waiting = replace(waiting, when_ms=when_ms)
        self._put_again(waiting)

    def cancel(self, offsets: Int64s) -> None:
        """Cancel the retries of these messages; O(n)."""
        waiting = self._wheel.drain()
        self._put_again(waiting.take(~np.isin(waiting.ids, offsets)))

    def waiting(self) -> tuple[Rows, Int64s]:
        """Return the messages in retry and the times of their next attempts. O(n).

        Some of the messages may have been acknowledged already.
        """
        entries = self._wheel.entries()
        entries = entries.take(np.flatnonzero(entries.ids >= 0))
        return _timed(entries), entries.when_ms


def _timed(timers: Entries) -> Rows:
    """Return the messages of retry timers as rows, decoded from the timers' tags and labels."""
    if not len(timers):
        return Rows.none()
    tags, labels = timers.tags, timers.labels
    assert tags is not None
    traits = None if labels is None else labels.astype(np.uint32)
    return Rows(tags >> 16, timers.ids, tags & _ATTEMPTS, traits)
