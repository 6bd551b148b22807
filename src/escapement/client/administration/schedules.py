"""Recurring schedules, by which the broker publishes a message again and again.

They are available as ``Broker.schedules``. An *occurrence* is one of the times at which a schedule
publishes. Its message has two properties: ``schedule``, the full name of the schedule, and
``occurrence_ms``, the time of the occurrence in Unix milliseconds. Other times are aware datetimes
in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from escapement.client import content, delivery_times, serializers
from escapement.client.connection.retried_request import Ask
from escapement.client.constructor import internal
from escapement.client.delivery_times import Delay, at_ms, delay_ms, moment_or_none
from escapement.client.serializers import SerializerLike
from escapement.clock import moment
from escapement.recurrence import MIN_EVERY_MS


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, as it was when the broker answered.

    ``state`` is active, paused, ended, or broken, with the reason in ``problem``. ``next`` and
    ``last`` are the times of the next occurrence and of the last one, and ``published`` is the
    number of messages published. ``coming`` has the times of the next ten occurrences. It is
    empty in the results of ``Schedules.list``. The other fields are as for ``Schedules.create``.
    """

    name: str
    topic: str
    cron: str | None
    timezone: str | None
    every: timedelta | None
    until: datetime | None
    missed: str
    state: str
    problem: str | None
    next: datetime | None
    last: datetime | None
    published: int
    created: datetime
    coming: tuple[datetime, ...] = ()
    spread: timedelta | None = None


class Unchanged(Enum):
    """The type of ``UNCHANGED``, which stands for a value that ``Schedules.update`` leaves."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class Schedules:
    """Requests about the recurring schedules of a broker; available as ``Broker.schedules``."""

    @internal
    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def create(
        self,
        name: str,
        topic: str,
        value: Any = b"",
        *,
        cron: str | None = None,
        timezone: str = "UTC",
        every: Delay | None = None,
        until: datetime | None = None,
        missed: str = "last",
        key: str | None = None,
        serializer: SerializerLike = bytes,
        spread: Delay | None = None,
    ) -> Schedule:
        """Create a schedule that publishes ``value`` to ``topic`` repeatedly.

        Each occurrence is published exactly once.

        Args:
          name: the name of the schedule: ``tenant/namespace/name``, or ``name`` for one in
            public/default.
          topic: the topic, as for ``Broker.producer``.
          value: a value that the serializer accepts, the same for each message.
          cron: a cron expression with five fields, or with six, of which the first is seconds.
            The syntax is that of the library cronsim.
          timezone: the time zone of ``cron``, such as "Europe/Berlin".
          every: instead of ``cron``, the interval between occurrences, counted from now. It must
            be at least a second.
          until: the time after which nothing is published.
          missed: how to treat occurrences that the broker can publish only more than a minute
            late, for example because it was down: "skip" publishes none of them, "last" only
            the last one, "all" every one.
          key: the key of each message.
          serializer: how to convert ``value`` to bytes, as for ``Broker.producer``.
          spread: deliver each message within this span from its occurrence on. A hash of the
            schedule's name and the occurrence chooses the place in the span.

        Raises:
          InvalidRequest: if an argument is not valid.
          AlreadyExists: if a schedule with this name exists.
          LimitExceeded: if there are too many schedules, or the message is too large.
          NotFound: if the topic does not exist, and the broker does not create topics.
        """
        plain = await self._ask(
            "schedules.create",
            schedule=name,
            topic=topic,
            payload=serializers.serializer(serializer).dumps(value),
            cron=cron,
            timezone=None if cron is None else timezone,
            every_ms=None if every is None else delay_ms(every, "every", MIN_EVERY_MS),
            until_ms=None if until is None else max(1, at_ms(until, "until")),
            missed=missed,
            key=content.key(key),
            spread_ms=delivery_times.span_ms(spread),
        )
        return _schedule(plain)

    async def update(
        self,
        name: str,
        *,
        topic: str | None = None,
        value: Any = UNCHANGED,
        cron: str | None = None,
        timezone: str | None = None,
        every: Delay | None = None,
        until: datetime | Unchanged | None = UNCHANGED,
        missed: str | None = None,
        key: str | Unchanged | None = UNCHANGED,
        serializer: SerializerLike = bytes,
        spread: Delay | Unchanged | None = UNCHANGED,
    ) -> Schedule:
        """Change a schedule. Values that are not given stay.

        Occurrences that are due already are published before the change. The next occurrence is the
        first of the new times from now on. A paused schedule stays paused.

        Args:
          name: the name of the schedule.
          cron, every: the new times. ``cron`` replaces an interval, and ``every`` a cron
            expression. A new interval counts from now.
          until, key, spread: None removes the end, the key or the spread.
          The others are as for ``create``.

        Raises:
          InvalidRequest: if an argument is not valid, or nothing is to be changed.
          NotFound: if the schedule does not exist.
          LimitExceeded: if the message is too large.
        """
        changes: dict[str, Any] = {
            "topic": topic,
            "cron": cron,
            "timezone": timezone,
            "every_ms": None if every is None else delay_ms(every, "every", MIN_EVERY_MS),
            "missed": missed,
        }
        if not isinstance(value, Unchanged):
            changes["payload"] = serializers.serializer(serializer).dumps(value)
        if not isinstance(until, Unchanged):
            changes["until_ms"] = 0 if until is None else max(1, at_ms(until, "until"))
        if not isinstance(key, Unchanged):
            changes["key"] = content.key(key)
        if not isinstance(spread, Unchanged):
            changes["spread_ms"] = delivery_times.span_ms(spread)
        return _schedule(await self._ask("schedules.update", schedule=name, **changes))

    async def run_now(self, name: str) -> Schedule:
        """Publish a message of a schedule now, even if it is paused or has ended.

        Its occurrences do not change. The message has the property ``run_now``, and its
        ``occurrence_ms`` is the time of this request.

        Raises:
          NotFound: if the schedule does not exist.
          Disconnected: if no answer arrives. The message may or may not be published.
        """
        return _schedule(await self._ask("schedules.run_now", schedule=name))

    async def next(self, name: str, count: int = 10) -> tuple[datetime, ...]:
        """Return the next occurrences of a schedule, at most 100; none unless it is active.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return _schedule(await self._ask("schedules.next", schedule=name, count=count)).coming

    async def list(self, namespace: str | None = None) -> list[Schedule]:
        """Return the schedules of a namespace, or of all namespaces, ordered by name."""
        found = await self._ask("schedules.list", namespace=namespace)
        return [_schedule(one) for one in found]

    async def get(self, name: str) -> Schedule:
        """Return one schedule, with the times of its next ten occurrences.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return _schedule(await self._ask("schedules.get", schedule=name))

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule: it publishes nothing until it is resumed.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return _schedule(await self._ask("schedules.pause", schedule=name))

    async def resume(self, name: str) -> Schedule:
        """Resume a paused schedule. The occurrences during the pause are not published.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return _schedule(await self._ask("schedules.resume", schedule=name))

    async def delete(self, name: str) -> None:
        """Delete a schedule. The messages that it has published stay.

        Raises:
          NotFound: if the schedule does not exist.
        """
        await self._ask("schedules.delete", schedule=name)


def _schedule(plain: Mapping[str, Any]) -> Schedule:
    every_ms = plain["every_ms"]
    return Schedule(
        plain["schedule"],
        plain["topic"],
        plain["cron"],
        plain["timezone"],
        None if every_ms is None else timedelta(milliseconds=every_ms),
        moment_or_none(plain["until_at_ms"]),
        plain["missed"],
        plain["state"],
        plain["problem"],
        moment_or_none(plain["next_at_ms"]),
        moment_or_none(plain["last_at_ms"]),
        plain["published"],
        moment(plain["created_at_ms"]),
        tuple(map(moment, plain.get("coming_ms", ()))),
        None if plain["spread_ms"] is None else timedelta(milliseconds=plain["spread_ms"]),
    )
