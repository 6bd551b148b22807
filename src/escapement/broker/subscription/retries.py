"""What of a subscription waits for another attempt, and until when others may be held.

One wheel has both: a *retry* is a message and the time of its next attempt, a *watch* is a
delivery and its first deadline.

Pure: it does not know who acknowledges, and what it is told may be over by the time it
fires. All retries run on the wheel, whatever gave the message back. V4.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from escapement.broker.subscription.ready import Rows
from escapement.message import Int64s
from escapement.timewheel import Entries, TimingWheel

# Retries and ack timeouts are watched at this resolution, whatever the topic's tick:
# they are measured in seconds, and a coarse tick for delays must not stretch them.
TIMER_TICK_MS: Final = 10
# Beside the due time, a timer's tag has the attempts in this many bits.
_ATTEMPTS: Final = 0xFFFF
# Timers of deliveries that are over are dropped once they outnumber the others, and this.
_TIDY_TIMERS: Final = 16_384


class Fired(NamedTuple):
    """What became due: deliveries to be looked at, and messages to be tried again."""

    deliveries: list[int]
    rows: Rows


class Retries:
    """See the module's docstring."""

    __slots__ = ("_wheel",)

    def __init__(self, now_ms: int) -> None:
        self._wheel = TimingWheel(TIMER_TICK_MS, now_ms)

    # -- the wheel -------------------------------------------------------------------

    def wait(self, rows: Rows, next_ms: Int64s) -> Rows:
        """Try these again at ``next_ms``; returns those for which that is over.

        There are such where the wall clock went back a little, and the wheel has seen later.
        """
        tags = (rows.due_ms << 16) | rows.attempts
        labels = None if rows.traits is None else rows.traits.astype(np.int64)
        elapsed = self._wheel.insert(next_ms, rows.offsets, tags, labels)
        return Rows.none() if elapsed is None else _timed(elapsed)

    def watch(self, delivery_id: int, deadline_ms: int) -> None:
        """Look at a delivery at its deadline."""
        elapsed = self._wheel.insert_one(max(deadline_ms, self._wheel.now_ms + 1), -delivery_id)
        assert not elapsed

    def is_untidy(self, live: int) -> bool:
        """Whether most watches are over, where at most ``live`` entries are not."""
        return len(self._wheel) > _TIDY_TIMERS + 4 * live

    def tidy(self, delivery_ids: Int64s) -> None:
        """Drop the watches of other deliveries: with a long wait they are most."""
        waiting = self._wheel.drain()
        waiting = waiting.take((waiting.ids >= 0) | np.isin(-waiting.ids, delivery_ids))
        elapsed = self._wheel.insert(waiting.when_ms, waiting.ids, waiting.tags, waiting.labels)
        assert elapsed is None or not len(elapsed)

    def advance(self, now_ms: int) -> Fired | None:
        """What became due by ``now_ms``; None if nothing did."""
        fired = self._wheel.advance(max(now_ms, self._wheel.now_ms))
        if not len(fired):
            return None
        retry = fired.ids >= 0
        rows = _timed(fired.take(np.flatnonzero(retry)))
        return Fired((-fired.ids[~retry]).tolist(), rows)

    def next_wake_ms(self) -> int | None:
        """When ``advance`` has something to do."""
        return self._wheel.next_wake_ms()

    def rewind(self, now_ms: int) -> None:
        """The wall clock went back: all is laid out again; deadlines stay as they are."""
        waiting = self._wheel.drain()
        self._wheel = TimingWheel(TIMER_TICK_MS, now_ms)
        elapsed = self._wheel.insert(
            np.maximum(waiting.when_ms, now_ms + 1), waiting.ids, waiting.tags, waiting.labels
        )
        assert elapsed is None

    def live(self, ttl_ms: int) -> None:
        """What waits for another attempt waits no longer than so long after it was due; O(n)."""
        if not len(self._wheel):
            return
        waiting = self._wheel.drain()
        when_ms = waiting.when_ms
        if waiting.tags is not None:
            ends_ms = np.maximum((waiting.tags >> 16) + ttl_ms, self._wheel.now_ms + 1)
            when_ms = np.where(waiting.ids >= 0, np.minimum(when_ms, ends_ms), when_ms)
        elapsed = self._wheel.insert(when_ms, waiting.ids, waiting.tags, waiting.labels)
        assert elapsed is None or not len(elapsed)

    def cancel(self, offsets: Int64s) -> None:
        """These are not tried again; O(n)."""
        self._wheel.cancel(offsets)

    def waiting(self) -> tuple[Rows, Int64s]:
        """What waits and when it is tried again; among it may be what is over. O(n)."""
        entries = self._wheel.entries()
        entries = entries.take(np.flatnonzero(entries.ids >= 0))
        return _timed(entries), entries.when_ms


def _timed(timers: Entries) -> Rows:
    """The rows of timers: due time and attempts were packed into tags, traits are labels."""
    if not len(timers):
        return Rows.none()
    tags, labels = timers.tags, timers.labels
    assert tags is not None
    traits = None if labels is None else labels.astype(np.uint32)
    return Rows(tags >> 16, timers.ids, tags & _ATTEMPTS, traits)
