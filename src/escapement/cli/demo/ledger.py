"""The ledger: the demo's record of messages sent and messages arrived.

Every message has a number in its payload. By these numbers the ledger compares arrivals with the
messages that the demo sent, and does not rely on figures of the broker. It judges three promises: a
message with a receipt arrives, a message whose acknowledgement is confirmed never arrives again,
and no message is early. The ledger reads no clock: times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrival of a message at a consumer."""

    number: int  # the number in the message's payload
    offset: int
    due_ms: int
    at_ms: int  # when the consumer received the message

    @property
    def late_ms(self) -> int:
        return self.at_ms - self.due_ms


@dataclass(frozen=True, slots=True)
class Outage:
    """The time from the kill of the broker until consumers were connected again."""

    killed_ms: int  # the time of the kill
    back_ms: int  # when consumers were connected again

    def held_up(self, arrival: Arrival) -> bool:
        """Return whether the outage may have delayed a message.

        Such a message was due before consumers were connected again, and arrived after the kill.
        """
        return arrival.due_ms <= self.back_ms and arrival.at_ms >= self.killed_ms


class Ledger:
    """A record of messages sent and arrived, which judges the promises."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.early = 0
        # Repeated arrivals of messages that were in flight at the kill: they break no promise.
        self.again = 0
        self.duplicates = 0  # repeated arrivals that break a promise
        # The following identify messages by their numbers.
        self._not_before_ms: dict[int, int] = {}
        self._confirmed: set[int] = set()  # messages with a receipt
        self._first: dict[int, Arrival] = {}  # the first arrival of each message
        self._done: set[int] = set()  # messages whose acknowledgement is confirmed
        self._in_flight_at_kill: set[int] = set()

    # -- events ----------------------------------------------------------------------

    def asked(self, number: int, not_before_ms: int) -> None:
        """Record that a message is about to be sent, due at ``not_before_ms``."""
        self._not_before_ms[number] = not_before_ms

    def confirmed(self, numbers: Iterable[int]) -> None:
        """Record that these messages have receipts: they must arrive."""
        self._confirmed.update(numbers)

    def arrived(self, arrival: Arrival) -> None:
        """Record that a consumer received a message. Judge whether it is early or repeated."""
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
        """Record that acknowledgements are confirmed: these messages must not arrive again."""
        self._done.update(numbers)

    def killed(self) -> None:
        """Record that the broker is dead, and that no more arrivals or confirmations will follow.

        Messages that have arrived and whose acknowledgement is not confirmed were in flight at the
        kill. They may arrive again.
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
        """The number of messages that have a receipt and have not arrived."""
        return len(self._confirmed - self._first.keys())

    @property
    def settled(self) -> bool:
        """Whether every message has a receipt and a confirmed acknowledgement."""
        return self._not_before_ms.keys() == self._confirmed == self._done

    @property
    def kept(self) -> bool:
        """Whether every promise was kept. A message that has not arrived counts as lost."""
        return not (self.pending or self.early or self.duplicates)

    def lateness_ms(self, outage: Outage | None) -> tuple[float, float, float]:
        """Return the median, 99th percentile and maximum of the lateness of first arrivals.

        The figures leave out messages that the outage may have delayed.
        """
        late = [a.late_ms for a in self.arrivals if outage is None or not outage.held_up(a)]
        if not late:
            return 0.0, 0.0, 0.0
        p50, p99, most = np.percentile(late, [50, 99, 100]).tolist()
        return p50, p99, most

    def held_up(self, outage: Outage) -> list[Arrival]:
        """Return the first arrivals of messages that the outage may have delayed."""
        return [arrival for arrival in self.arrivals if outage.held_up(arrival)]
