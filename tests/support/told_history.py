"""A history that a test tells, at a stopped clock. Its times are relative to ``T0_MS``."""

from __future__ import annotations

from histories.history import Arrival, Consumer, History, Sent, Way

T0_MS = 1_000_000


class _StoppedClock:
    def now_s(self) -> float:
        return 0.0

    def now_ms(self) -> int:
        return T0_MS


class _Cable:
    ended_s: float | None = None


def ms(at_s: float) -> int:
    """Return the Unix time for a time of the history."""
    return T0_MS + round(1000 * at_s)


class ToldHistory:
    """A history of the topic ``t``: two shared subscriptions, and one in the order of the log."""

    def __init__(self) -> None:
        self.history = History(_StoppedClock())
        self.history.topics = {"t": ["a", "b", "l"], "u": []}
        self.history.kinds = {"a": "shared", "b": "shared", "l": "log"}
        self.history.sending_s = 1.0

    def publish(self, offset: int, due_s: float) -> int:
        """Publish a confirmed message, and return its number."""
        message = self.history.publish("t", "", ms(due_s))
        self.history.confirm(message, offset)
        return message.number

    def deliver(self, number: int, name: str, sent_s: float, due_s: float) -> None:
        """Deliver a message to a subscription for the first time."""
        way = Way(_Cable(), 1, Sent(sent_s, ms(sent_s), len(self.history.arrivals)))
        offset, consumer = self.history.messages[number].offset, Consumer(name)
        self.history.arrive(
            Arrival(name, number, offset, ms(due_s), "", False, sent_s, ms(sent_s), way, consumer)
        )
