"""Bulk changes: every message that matches and was not delivered is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import Amendment, History, Message
from histories.timing import earliest_due_ms


@dataclass(slots=True)
class Change:
    """A bulk change of one message, as a client asked for it."""

    message: Message
    amendment: Amendment
    spread_ms: int


@dataclass
class BulkCheck:
    """A bulk change that is done has changed all messages that waited all the time.

    So their amendments are confirmed, and invariant 10 holds for them. Messages that were moved
    are due in time.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    subscription: str
    skew_ms: int
    # The latest due time of each message that was surely moved, and not changed since.
    _latest_ms: dict[int, int] = field(default_factory=dict)
    # Messages of bulk changes that have not ended. Without an answer, they may begin at any time.
    _open: set[int] = field(default_factory=set)
    _began: set[int] = field(default_factory=set)  # those of them that the last one added

    def begin(
        self, messages: list[Message], due_ms: int | None, now_ms: int, spread_ms: int = 0
    ) -> list[Change]:
        """Note that a bulk change of messages is about to start. It may change each of them."""
        changes = []
        for message in messages:
            amendment = Amendment(due_ms, now_ms)
            message.amendments.append(amendment)
            changes.append(Change(message, amendment, spread_ms))
            self._latest_ms.pop(message.number, None)
        self._began = {message.number for message in messages} - self._open
        self._open |= self._began
        return changes

    def end(self, changes: list[Change], now_ms: int) -> None:
        """Note that a bulk change is done: it has certainly changed messages that are not due."""
        self._open -= self._began
        for change in changes:
            message, amendment = change.message, change.amendment
            earlier = message.amendments[: message.amendments.index(amendment)]
            earliest_ms = earliest_due_ms(message, self.subscription, earlier)
            waits = earliest_ms > now_ms + self.skew_ms
            if not waits or message.confirmed_ms >= amendment.called_ms:
                continue
            amendment.answered_ms, amendment.done = now_ms, True
            if amendment.due_ms is not None and message.number not in self._open:
                latest_ms = max(amendment.due_ms, now_ms) + change.spread_ms + self.skew_ms
                self._latest_ms[message.number] = latest_ms

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield messages that are due too late. The rules for all messages find the other ones."""
        for arrival in history.arrivals:
            if arrival.subscription == self.subscription:
                late_ms = arrival.due_ms - self._latest_ms.get(arrival.number, arrival.due_ms)
                if late_ms > 0:
                    yield f"bulk: message {arrival.number} is due {late_ms} ms too late"
