"""Requests that are posted behind messages: cancelled messages do not come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from histories.history import History, Message


@dataclass
class PostCheck:
    """A message that waits does not come once a request behind it has cancelled it.

    The rules for all messages find those that were lost, doubled, early, or rolled back.

    Args:
      patience_s: the time in which a broker carries out a committed request, in spite of faults.
    """

    patience_s: float
    cancels: list[tuple[Message, float]] = field(default_factory=list)

    def cancelled(self, messages: Sequence[Message], now_s: float) -> None:
        """Note that a request to cancel messages is committed."""
        self.cancels += [(message, now_s) for message in messages]

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield cancelled messages that came for the first time long after the request."""
        firsts: dict[int, float] = {}
        for arrival in history.arrivals:
            before_s = firsts.get(arrival.number, arrival.sent_s)
            firsts[arrival.number] = min(before_s, arrival.sent_s)
        for message, at_s in self.cancels:
            late_s = firsts.get(message.number, at_s) - at_s
            if late_s > self.patience_s:
                yield (
                    f"posted: message {message.number} came {late_s:.0f} s after a request to"
                    " cancel it was committed"
                )
