"""How much of a topic falls due when, as a client sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from escapement.client.schedule import moment


@dataclass(frozen=True, slots=True)
class Forecast:
    """``counts[i]`` messages fall due in the span ``by`` long that begins at ``begins(i)``.

    The first span has begun already. Counted is what is due after the moment of asking and
    before ``until``.
    """

    topic: str
    until: datetime
    by: timedelta
    first: datetime
    counts: list[int]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Forecast:
        """What the broker answered."""
        return cls(
            answer["topic"],
            moment(answer["until_ms"]),
            timedelta(milliseconds=answer["by_ms"]),
            moment(answer["first_ms"]),
            answer["counts"],
        )

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts)

    def begins(self, span: int) -> datetime:
        """When a span begins, in UTC."""
        return self.first + span * self.by
