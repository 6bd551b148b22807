"""Bulk changes: every message that matches and was not delivered is changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import Amendment, History, Message
from histories.timing import earliest_due_ms


@dataclass
class BulkCheck:
    """A bulk change that is done has changed all messages that waited all the time.

    So their amendments are confirmed, and invariant 10 holds for them.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    skew_ms: int
    found: list[str] = field(default_factory=list)

    def begin(
        self, messages: list[Message], due_ms: int | None, now_ms: int
    ) -> list[tuple[Message, Amendment]]:
        """Note that a bulk change of messages is about to start. It may change each of them."""
        changes = []
        for message in messages:
            amendment = Amendment(due_ms, now_ms)
            message.amendments.append(amendment)
            changes.append((message, amendment))
        return changes

    def end(self, changes: list[tuple[Message, Amendment]], now_ms: int, name: str) -> None:
        """Note that a bulk change is done: it has certainly changed messages that are not due."""
        for message, amendment in changes:
            earlier = message.amendments[: message.amendments.index(amendment)]
            waits = earliest_due_ms(message, name, earlier) > now_ms + self.skew_ms
            if waits and message.confirmed_ms < amendment.called_ms:
                amendment.answered_ms, amendment.done = now_ms, True

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield bulk changes that failed. The rules for all messages find those left out."""
        yield from self.found
