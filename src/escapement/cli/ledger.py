"""What the demo was promised, and what it got.

Every message has a number, written into its payload, so that what arrives is held against
what was asked for and not against what the broker says. Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """The first time a message came."""

    number: int
    offset: int
    due_ms: int
    at_ms: int

    @property
    def late_ms(self) -> int:
        return self.at_ms - self.due_ms


@dataclass(frozen=True, slots=True)
class Outage:
    """From the kill until consumers had a connection again."""

    killed_ms: int
    back_ms: int

    def held_up(self, arrival: Arrival) -> bool:
        """Whether a message was due before the broker was back, and came after the kill."""
        return arrival.due_ms <= self.back_ms and arrival.at_ms >= self.killed_ms


class Ledger:
    """Counts what was sent, and judges what arrives."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.early = 0
        self.again = 0  # came twice, and may: nobody knew that they were done with
        self.duplicates = 0  # came twice, and must not
        self._not_before_ms: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._first: dict[int, Arrival] = {}
        self._done: set[int] = set()
        self._in_flight_at_kill: set[int] = set()

    # -- what happens ----------------------------------------------------------------

    def asked(self, number: int, not_before_ms: int) -> None:
        """A message is about to be sent."""
        self._not_before_ms[number] = not_before_ms

    def confirmed(self, numbers: Iterable[int]) -> None:
        """Their receipts came: they must not be lost."""
        self._confirmed.update(numbers)

    def arrived(self, arrival: Arrival) -> None:
        """A consumer has a message."""
        number = arrival.number
        if arrival.at_ms < max(arrival.due_ms, self._not_before_ms[number]):
            self.early += 1
        first = self._first.setdefault(number, arrival)
        if first is arrival:
            self.arrivals.append(arrival)
        elif first.offset == arrival.offset and number in self._in_flight_at_kill:
            self.again += 1
        else:
            self.duplicates += 1

    def acknowledged(self, numbers: Iterable[int]) -> None:
        """The broker said that they will never come again."""
        self._done.update(numbers)

    def killed(self) -> None:
        """The broker is gone, and all that it had on the wire is here.

        What was delivered and whose acknowledgement has no answer may come again.
        """
        self._in_flight_at_kill = self._first.keys() - self._done

    # -- how it stands -----------------------------------------------------------------

    @property
    def sent(self) -> int:
        return len(self._confirmed)

    @property
    def delivered(self) -> int:
        return len(self._first)

    @property
    def pending(self) -> int:
        """Confirmed, and not delivered yet."""
        return len(self._confirmed - self._first.keys())

    @property
    def settled(self) -> bool:
        """Whether all that was asked for is confirmed, delivered and acknowledged."""
        return self._not_before_ms.keys() == self._confirmed == self._done

    @property
    def kept(self) -> bool:
        """Whether every promise was."""
        return not (self.pending or self.early or self.duplicates)

    def lateness_ms(self, outage: Outage | None) -> tuple[float, float, float]:
        """Median, 99th percentile and maximum of those that no outage held up."""
        late = [a.late_ms for a in self.arrivals if outage is None or not outage.held_up(a)]
        if not late:
            return 0.0, 0.0, 0.0
        p50, p99, most = np.percentile(late, [50, 99, 100]).tolist()
        return p50, p99, most

    def held_up(self, outage: Outage) -> list[Arrival]:
        """Those that came late because there was no broker."""
        return [arrival for arrival in self.arrivals if outage.held_up(arrival)]
