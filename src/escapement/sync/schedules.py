"""The blocking facade of ``escapement.client.administration.schedules``."""

from __future__ import annotations

from typing import Any

from escapement.client.administration import schedules
from escapement.client.administration.schedules import Schedule
from escapement.sync.loop import Loop


class Schedules:
    """The recurring schedules of a broker; available as ``Broker.schedules``."""

    def __init__(self, loop: Loop, found: schedules.Schedules) -> None:
        self._loop = loop
        self._schedules = found

    def create(self, name: str, topic: str, value: Any = b"", **options: Any) -> Schedule:
        """Create a schedule that publishes ``value`` to ``topic`` repeatedly.

        Options and errors are as for ``escapement.Schedules.create``.
        """
        return self._loop.call(self._schedules.create, name, topic, value, **options)

    def list(self, namespace: str | None = None) -> list[Schedule]:
        """Return all schedules, or those of one namespace, ordered by name."""
        return self._loop.call(self._schedules.list, namespace)

    def get(self, name: str) -> Schedule:
        """Return one schedule, with its next ten times. Raises ``NotFound``."""
        return self._loop.call(self._schedules.get, name)

    def pause(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed. Raises ``NotFound``."""
        return self._loop.call(self._schedules.pause, name)

    def resume(self, name: str) -> Schedule:
        """Resume a schedule with the next occurrence after now. Raises ``NotFound``."""
        return self._loop.call(self._schedules.resume, name)

    def delete(self, name: str) -> None:
        """Delete a schedule; the messages it published stay. Raises ``NotFound``."""
        self._loop.call(self._schedules.delete, name)
