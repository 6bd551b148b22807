"""The class ``Schedules`` of the blocking client, a facade of ``escapement.Schedules``.

An *occurrence* is one of the times at which a schedule publishes its message.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from escapement.client.administration import schedules
from escapement.client.administration.schedules import Schedule
from escapement.client.constructor import internal
from escapement.sync.loop import Loop


class Schedules:
    """Requests about the recurring schedules of a broker; available as ``Broker.schedules``."""

    @internal
    def __init__(self, loop: Loop, found: schedules.Schedules) -> None:
        self._loop = loop
        self._schedules = found

    def create(self, name: str, topic: str, value: Any = b"", **options: Any) -> Schedule:
        """Create a schedule that publishes ``value`` to ``topic`` repeatedly.

        ``options`` and errors are those of ``escapement.Schedules.create``.
        """
        return self._loop.call(self._schedules.create, name, topic, value, **options)

    def list(self, namespace: str | None = None) -> list[Schedule]:
        """Return the schedules of a namespace, or of all namespaces, ordered by name."""
        return self._loop.call(self._schedules.list, namespace)

    def get(self, name: str) -> Schedule:
        """Return one schedule, with the times of its next ten occurrences.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return self._loop.call(self._schedules.get, name)

    def update(self, name: str, **changes: Any) -> Schedule:
        """Change a schedule. Values that are not given stay.

        ``changes`` and errors are those of ``escapement.Schedules.update``.
        """
        return self._loop.call(self._schedules.update, name, **changes)

    def run_now(self, name: str) -> Schedule:
        """Publish a message of a schedule now, even if it is paused or has ended.

        See ``escapement.Schedules.run_now``.
        """
        return self._loop.call(self._schedules.run_now, name)

    def next(self, name: str, count: int = 10) -> tuple[datetime, ...]:
        """Return the next occurrences of a schedule; see ``escapement.Schedules.next``."""
        return self._loop.call(self._schedules.next, name, count)

    def pause(self, name: str) -> Schedule:
        """Pause a schedule: it publishes nothing until it is resumed.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return self._loop.call(self._schedules.pause, name)

    def resume(self, name: str) -> Schedule:
        """Resume a paused schedule. The occurrences during the pause are not published.

        Raises:
          NotFound: if the schedule does not exist.
        """
        return self._loop.call(self._schedules.resume, name)

    def delete(self, name: str) -> None:
        """Delete a schedule. The messages that it has published stay.

        Raises:
          NotFound: if the schedule does not exist.
        """
        self._loop.call(self._schedules.delete, name)
