"""Limits of deliveries: messages in flight, and messages per second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from histories.history import Arrival, History
from histories.repeats import may_be_over
from simulation.checks.setting import Setting, surely
from simulation.checks.terms import Terms

# A broker that chose two messages at different times, while its disk was slow, may send them
# together. So the window of a rate is longer by this time.
_SLOW_S: Final = 120.0
# The messages of this time may come at once, and one more: docs/limits.md.
_BURST_S: Final = 0.1


@dataclass(slots=True)
class Limits(Setting):
    """The limits of one subscription; 0: no limit."""

    max_in_flight: int = 0
    max_rate: float = 0.0


@dataclass
class LimitCheck:
    """Each owner of a topic keeps the limits of its subscriptions.

    After a take-over, the deliveries of the earlier owner do not count.

    Args:
      limits: the limits of each subscription, in the order in which they were set.
      terms: those of the topic's bundle.
    """

    limits: dict[str, list[Limits]]
    terms: Terms

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield deliveries beyond a limit, and those of brokers that own the topic no more."""
        for name, limits in self.limits.items():
            owned, stale = self.terms.divide(
                one for one in history.arrivals if one.subscription == name
            )
            for arrival in stale:
                yield f"limits: {arrival} was sent by an earlier owner"
            for arrivals in owned:
                yield from self._too_many(history, limits, arrivals)
                yield from self._too_fast(history, limits, arrivals)

    def _too_many(
        self, history: History, limits: Sequence[Limits], arrivals: Sequence[Arrival]
    ) -> Iterator[str]:
        """Yield deliveries while as many messages as allowed were in flight."""
        there: list[Arrival] = []
        for arrival in arrivals:
            there = [one for one in there if not _is_over(history, one, arrival.sent_s)]
            there.append(arrival)
            at_ms = history.unix_ms(arrival.sent_s)
            held = surely(limits, at_ms, at_ms)
            if held is None or not held.max_in_flight:
                continue
            count = len({one.offset for one in there})
            if count > held.max_in_flight:
                yield f"limits: {arrival} came as one of {count} in flight at once, under {held}"

    def _too_fast(
        self, history: History, limits: Sequence[Limits], arrivals: Sequence[Arrival]
    ) -> Iterator[str]:
        """Yield deliveries that came sooner than the rate allows."""
        for row, last in enumerate(arrivals):
            to_ms = history.unix_ms(last.sent_s)
            held = surely(limits, to_ms, to_ms)
            if held is None or not held.max_rate:
                continue
            for count, first in enumerate(reversed(arrivals[: row + 1]), start=1):
                if history.unix_ms(first.sent_s) < held.from_ms:
                    break
                window_s = last.sent_s - first.sent_s + _SLOW_S + _BURST_S
                if count > held.max_rate * window_s + 1:
                    yield (
                        f"limits: {last} came as one of {count} messages in"
                        f" {last.sent_s - first.sent_s:.0f} s, under {held}"
                    )
                    break


def _is_over(history: History, arrival: Arrival, at_s: float) -> bool:
    """Return whether a message may no longer be in flight."""
    acks_s = history.acks_s(arrival.subscription, arrival.offset)
    return min(acks_s, default=at_s + 1) <= at_s or may_be_over(history, arrival, at_s)
