"""The demo's record of messages sent and messages arrived.

Every message has a number in its payload. So the ledger compares arrivals with what the demo
asked for, not with what the broker reports. Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrival of a message at a consumer."""

    number: int
    offset: int
    due_ms: int
    at_ms: int

    @property
    def late_ms(self) -> int:
        return self.at_ms - self.due_ms


@dataclass(frozen=True, slots=True)
class Outage:
    """The time from the kill until consumers were connected again."""

    killed_ms: int
    back_ms: int

    def held_up(self, arrival: Arrival) -> bool:
        """Return whether a message was due before the broker was back and came after the kill."""
        return arrival.due_ms <= self.back_ms and arrival.at_ms >= self.killed_ms


class Ledger:
    """A record of messages sent and arrived, and the judge of the promises."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.early = 0
        self.again = (
            0  # allowed second arrivals: in flight at the kill, not confirmed as acknowledged
        )
        self.duplicates = 0  # second arrivals that break the promise
        self._not_before_ms: dict[int, int] = {}
        self._confirmed: set[int] = set()
        self._first: dict[int, Arrival] = {}
        self._done: set[int] = set()
        self._in_flight_at_kill: set[int] = set()

    # -- events ----------------------------------------------------------------------

    def asked(self, number: int, not_before_ms: int) -> None:
        """Record that a message is about to be sent."""
        self._not_before_ms[number] = not_before_ms

    def confirmed(self, numbers: Iterable[int]) -> None:
        """Record the receipts of messages: these must not be lost."""
        self._confirmed.update(numbers)

    def arrived(self, arrival: Arrival) -> None:
        """Record that a consumer received a message."""
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
        """Record confirmed acknowledgements: these messages must not arrive again."""
        self._done.update(numbers)

    def killed(self) -> None:
        """Record that the broker is dead and that everything it put on the wire has arrived.

        Delivered messages whose acknowledgement is not confirmed may be redelivered.
        """
        self._in_flight_at_kill = self._first.keys() - self._done

    # -- state -------------------------------------------------------------------------

    @property
    def sent(self) -> int:
        return len(self._confirmed)

    @property
    def delivered(self) -> int:
        return len(self._first)

    @property
    def pending(self) -> int:
        """The number of confirmed messages not yet delivered."""
        return len(self._confirmed - self._first.keys())

    @property
    def settled(self) -> bool:
        """Whether every message asked for is confirmed, delivered and acknowledged."""
        return self._not_before_ms.keys() == self._confirmed == self._done

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not (self.pending or self.early or self.duplicates)

    def lateness_ms(self, outage: Outage | None) -> tuple[float, float, float]:
        """Return median, 99th percentile and maximum, without messages held up by the outage."""
        late = [a.late_ms for a in self.arrivals if outage is None or not outage.held_up(a)]
        if not late:
            return 0.0, 0.0, 0.0
        p50, p99, most = np.percentile(late, [50, 99, 100]).tolist()
        return p50, p99, most

    def held_up(self, outage: Outage) -> list[Arrival]:
        """Return the arrivals that were late because the broker was down."""
        return [arrival for arrival in self.arrivals if outage.held_up(arrival)]
