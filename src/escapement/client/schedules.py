"""Recurring schedules: what the broker publishes again and again, by itself.

Reached through ``Broker.schedules``. Times are aware datetimes in UTC; an occurrence's
message says in its properties which schedule it is of (``schedule``) and for when
(``occurrence_ms``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from escapement.client import content, serializers
from escapement.client.schedule import Delay, at_ms, delay_ms, moment
from escapement.client.serializers import SerializerLike


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule as it was when it was asked for.

    ``state`` is active, paused, ended, or broken (then ``problem`` says why). ``coming`` are
    the next ten times, where one schedule was asked for.
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


class Schedules:
    """The schedules of a broker; see the module's docstring."""

    def __init__(self, admin: Callable[..., Awaitable[Any]]) -> None:
        self._admin = admin

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
    ) -> Schedule:
        """Publish ``value`` on ``topic`` again and again, each occurrence exactly once.

        Args:
          name: ``tenant/namespace/name``, or ``name`` in public/default, as topics are named.
          cron: five fields, or six with seconds first, as in cronsim; or give ``every``.
          timezone: in which ``cron`` is read, "Europe/Berlin".
          every: so often, from now on; a second at least.
          until: nothing is published later than then.
          missed: what becomes of occurrences to which the broker comes more than a minute
            late: "skip" publishes none of them, "last" the last one, "all" all.
          key: of each message.
          serializer: see ``escapement.client.serializers``.

        Raises:
          InvalidRequest: if something cannot be meant.
          AlreadyExists: if there is a schedule of this name.
        """
        arguments: dict[str, Any] = {"payload": serializers.serializer(serializer).dumps(value)}
        if cron is not None:
            arguments |= {"cron": cron, "timezone": timezone}
        if every is not None:
            arguments["every_ms"] = delay_ms(every)
        if until is not None:
            arguments["until_ms"] = at_ms(until)
        if key is not None:
            arguments["key"] = content.key(key)
        return _schedule(
            await self._admin(
                "schedules.create", schedule=name, topic=topic, missed=missed, **arguments
            )
        )

    async def list(self, namespace: str | None = None) -> list[Schedule]:
        """All schedules by name, or those of one namespace."""
        found = await self._admin("schedules.list", namespace=namespace)
        return [_schedule(one) for one in found]

    async def get(self, name: str) -> Schedule:
        """One schedule, with its next ten times. Raises ``NotFound``."""
        return _schedule(await self._admin("schedules.get", schedule=name))

    async def pause(self, name: str) -> Schedule:
        """Publish nothing until it is resumed. Raises ``NotFound``."""
        return _schedule(await self._admin("schedules.pause", schedule=name))

    async def resume(self, name: str) -> Schedule:
        """Go on with the first occurrence from now on. Raises ``NotFound``."""
        return _schedule(await self._admin("schedules.resume", schedule=name))

    async def delete(self, name: str) -> None:
        """Forget it; what it has published stays. Raises ``NotFound``."""
        await self._admin("schedules.delete", schedule=name)


def _schedule(plain: Mapping[str, Any]) -> Schedule:
    def time(name: str) -> datetime | None:
        return None if plain[name] is None else moment(plain[name])

    every_ms = plain["every_ms"]
    return Schedule(
        plain["schedule"],
        plain["topic"],
        plain["cron"],
        plain["timezone"],
        None if every_ms is None else timedelta(milliseconds=every_ms),
        time("until_at_ms"),
        plain["missed"],
        plain["state"],
        plain["problem"],
        time("next_at_ms"),
        time("last_at_ms"),
        plain["published"],
        moment(plain["created_at_ms"]),
        tuple(map(moment, plain.get("coming_ms", ()))),
    )
