"""Topics that are deleted and created again: nothing of the deleted one is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import History, Message


@dataclass
class DeleteCheck:
    """A topic that was created again has its own messages, and no others.

    ``life`` has the messages that were sent to the present topic, and ``stored`` the numbers that
    the last look found there.
    """

    life: list[Message] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def differs(self, where: str, stored: list[int]) -> Iterator[str]:
        """Compare the messages of the topic with those that were sent to it."""
        sent = {message.number for message in self.life}
        known = {message.number for message in self.life if message.offset >= 0}
        if strange := set(stored) - sent:
            yield f"delete: {where} has messages {sorted(strange)} of a deleted topic"
        if missing := known - set(stored):
            yield f"delete: {where} lacks messages {sorted(missing)}"
        if len(stored) > len(set(stored)):
            yield f"delete: {where} has a message twice: {sorted(stored)}"

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: these messages have no consumers."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield what the looks have found."""
        yield from self.found
