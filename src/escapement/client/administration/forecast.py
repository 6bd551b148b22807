"""The number of messages of a topic that become due in each span of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from escapement.clock import moment


@dataclass(frozen=True, slots=True)
class Forecast:
    """The number of messages of ``topic`` that become due in each span of time, such as each hour.

    ``counts[i]`` messages become due in the span that begins at ``begins(i)`` and has the length
    ``by``. The first span begins at ``first``, which may be before the request. Only messages that
    become due after the request and before ``until`` are counted.
    """

    topic: str
    until: datetime
    by: timedelta
    first: datetime
    counts: list[int]

    @classmethod
    def _of(cls, answer: dict[str, Any]) -> Forecast:
        """Return the forecast that the broker's answer to ``topics.forecast`` contains."""
        return cls(
            answer["topic"],
            moment(answer["until_ms"]),
            timedelta(milliseconds=answer["by_ms"]),
            moment(answer["first_ms"]),
            answer["counts"],
        )

    @property
    def total(self) -> int:
        """The number of messages that become due in all spans together."""
        return sum(self.counts)

    def begins(self, span: int) -> datetime:
        """Return the time in UTC at which the span with number ``span`` begins, counted from 0."""
        return self.first + span * self.by
