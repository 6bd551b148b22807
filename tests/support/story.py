"""A small history of a simulation that a test makes up, to show it to a check."""

from __future__ import annotations

from dataclasses import dataclass

from histories.checker import violations
from histories.history import (
    Arrival,
    Consumer,
    History,
    Message,
    Sent,
    Way,
)
from simulation.checks.check import Check
from simulation.checks.claiming import Stay
from simulation.checks.terms import Terms

T0_MS = 1_000_000
HOUR_MS = 3_600_000
SKEW_MS = 1_000


@dataclass(eq=False)
class Cable:
    ended_s: float | None = None


class Story:
    """A history of one topic with one subscription, which a test tells step by step.

    It is the clock of the history, too.
    """

    def __init__(self) -> None:
        self.at_ms = T0_MS
        self.history = History(self)
        self.history.topics = {"t": ["s"]}
        self.history.kinds = {"s": "shared"}
        self.history.sending_s = 2.0
        self.history.expiry_s = 1800.0
        self.host = "host"  # which sends what is delivered
        self.terms = Terms([0.0], ["host"])

    def now_ms(self) -> int:
        return self.at_ms

    def now_s(self) -> float:
        return (self.at_ms - T0_MS) / 1000

    def wait(self, hours: float = 1.0) -> None:
        self.at_ms += round(hours * HOUR_MS)

    def send(self, offset: int, due_ms: int = 0) -> Message:
        """Store a message; a negative offset: no client knows whether it is stored."""
        message = self.history.publish("t", "", due_ms or self.at_ms)
        if offset >= 0:
            self.history.confirm(message, offset)
        return message

    def deliver(
        self,
        message: Message,
        offset: int = -1,
        *,
        acks: bool = True,
        due_ms: int | None = None,
        stay: Stay | None = None,
    ) -> Arrival:
        """Deliver a message now. The broker names a due time."""
        sent = Sent(self.now_s(), self.at_ms, len(self.history.arrivals))
        arrival = Arrival(
            "s",
            message.number,
            message.offset if offset < 0 else offset,
            message.earliest_ms if due_ms is None else due_ms,
            message.key,
            False,
            self.now_s(),
            self.at_ms,
            Way(Cable(), self.host, sent),
            Consumer("s") if stay is None or stay.consumer is None else stay.consumer,
        )
        self.history.arrive(arrival)
        if acks:
            self.ack(arrival)
        return arrival

    def ack(self, arrival: Arrival) -> None:
        arrival.acked_s = self.now_s()
        self.history.ack_sent.add(("s", arrival.offset))

    def found(self, check: Check) -> list[str]:
        """Return what the rules and a check find in the whole history."""
        found = [*violations(self.history, drained=True), *check.violations(self.history)]
        return [*found, *check.unfinished(self.history)]
