"""The number of messages of a topic or namespace that become due in each span of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from escapement.clock import moment


class _Spans:
    """The common part of the forecasts of a topic and of a namespace."""

    __slots__ = ()

    by: timedelta
    first: datetime
    counts: list[int]

    @property
    def total(self) -> int:
        """The number of messages that become due in all spans together."""
        return sum(self.counts)

    def begins(self, span: int) -> datetime:
        """Return the time in UTC at which the span with number ``span`` begins, counted from 0."""
        return self.first + span * self.by


@dataclass(frozen=True, slots=True)
class Forecast(_Spans):
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


@dataclass(frozen=True, slots=True)
class NamespaceForecast(_Spans):
    """The pending messages of ``namespace``, or of all namespaces if it is None.

    The broker counted them at the time ``at``. ``counts[i]`` messages became due after ``at``, in
    the span that begins at ``begins(i)`` and has the length ``by``. The last span ends at
    ``until``.

    Attributes:
      exact: whether no number is an estimate. The numbers of topics that are not in use are
        estimates if they have due messages.
      scheduled: messages not yet due, also those beyond ``until``.
      overdue: due messages that subscriptions have not delivered: ``due`` ones that wait for a
        consumer, and ``retrying`` ones that wait for another attempt.
      in_flight: delivered messages that are neither acknowledged nor returned.
      oldest_due: the due time of the oldest message in ``due``, of shared subscriptions; None if
        there is none.
    """

    namespace: str | None
    at: datetime
    exact: bool
    until: datetime
    by: timedelta
    first: datetime
    counts: list[int]
    scheduled: int
    overdue: int
    due: int
    retrying: int
    in_flight: int
    oldest_due: datetime | None

    @classmethod
    def _of(cls, answer: dict[str, Any]) -> NamespaceForecast:
        """Return the forecast that the broker's answer to ``namespaces.forecast`` contains."""
        oldest_ms = answer["oldest_due_ms"]
        return cls(
            answer["namespace"],
            moment(answer["at_ms"]),
            answer["exact"],
            moment(answer["until_ms"]),
            timedelta(milliseconds=answer["by_ms"]),
            moment(answer["first_ms"]),
            answer["counts"],
            answer["scheduled"],
            answer["overdue"],
            answer["due"],
            answer["retrying"],
            answer["in_flight"],
            None if oldest_ms is None else moment(oldest_ms),
        )
