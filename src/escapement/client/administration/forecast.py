"""The number of messages of a topic that become due in each span of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from escapement.clock import moment


@dataclass(frozen=True, slots=True)
class Forecast:
    """The number of messages that become due in each span of time.

    ``counts[i]`` messages become due in the span that begins at ``begins(i)`` and has the
    length ``by``. The first span began before the request. Counted are the messages that
    become due after the request and before ``until``.
    """

    topic: str
    until: datetime
    by: timedelta
    first: datetime
    counts: list[int]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Forecast:
        """Return the forecast in an answer of the broker."""
        return cls(
            answer["topic"],
            moment(answer["until_ms"]),
            timedelta(milliseconds=answer["by_ms"]),
            moment(answer["first_ms"]),
            answer["counts"],
        )

    @property
    def total(self) -> int:
        """The number of messages in all spans."""
        return sum(self.counts)

    def begins(self, span: int) -> datetime:
        """Return the time when a span begins, in UTC."""
        return self.first + span * self.by
