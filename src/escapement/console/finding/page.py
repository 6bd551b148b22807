"""One page of the messages that a search found, and the place at which the next one begins. Pure.

Pending messages of several topics are merged by due time, then topic, then offset. A *place* is a
point in this order. A page holds all messages of all topics between two places, so the place is all
that the next page needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from escapement.errors import InvalidRequest
from escapement.names import full_name

# The most messages of one page.
PAGE_MESSAGES: Final = 50
# The most digits of a number in a place. Each such number fits an int64.
_MOST_DIGITS: Final = 18


class Place(NamedTuple):
    """A point in the order of pending messages."""

    due_ms: int
    topic: str
    offset: int

    @classmethod
    def parse(cls, text: str) -> Place:
        """Return the place that ``str`` wrote.

        Raises:
          InvalidRequest: if it is none.
        """
        due, _, rest = text.partition(".")
        offset, _, topic = rest.partition(".")
        for number in (due, offset):
            if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS):
                raise InvalidRequest(f"{text!r:.60} is not a place in a list.")
        return cls(int(due), full_name(topic), int(offset))

    def __str__(self) -> str:
        return f"{self.due_ms}.{self.offset}.{self.topic}"

    def inside(self, topic: str) -> list[int]:
        """Return the due time and offset at which the messages of a topic after it begin."""
        if topic == self.topic:
            return [self.due_ms, self.offset]
        return [self.due_ms + (topic < self.topic), 0]


@dataclass(frozen=True, slots=True)
class Row:
    """A message of a list. ``state`` is in words."""

    topic: str
    offset: int
    due_ms: int
    state: str
    key: str | None
    properties: Mapping[str, Any]
    size_bytes: int

    @property
    def id(self) -> str:
        return f"{self.topic}@{self.offset}"

    @property
    def place(self) -> Place:
        return Place(self.due_ms, self.topic, self.offset)


@dataclass(slots=True)
class Found:
    """A page of messages. ``next`` is where the next one begins; "" if there is none.

    ``looked`` is the number of messages that the search has looked at, if it had to.
    """

    rows: list[Row] = field(default_factory=list)
    next: str = ""
    looked: int = 0


def merged(pages: Mapping[str, tuple[Sequence[Row], Sequence[int] | None]]) -> Found:
    """Merge the pages of several topics into one.

    Args:
      pages: for each topic its messages, in order, and the due time and offset at which its next
        page begins; None if there is none.
    """
    # The messages of a topic are known up to its next page.
    ends = [Place(next[0], topic, next[1]) for topic, (_, next) in pages.items() if next]
    end = min(ends, default=None)
    rows = sorted((row for found, _ in pages.values() for row in found), key=lambda row: row.place)
    if end is not None:
        rows = [row for row in rows if row.place < end]
    if len(rows) > PAGE_MESSAGES:
        end = rows[PAGE_MESSAGES].place
    return Found(rows[:PAGE_MESSAGES], "" if end is None else str(end))
