"""The blocking face of ``escapement.client.schedules``."""

from __future__ import annotations

from functools import partial
from typing import Any

from escapement.client import schedules
from escapement.client.schedules import Schedule
from escapement.sync.loop import Loop


class Schedules:
    """Made by ``Broker.schedules``; see ``escapement.client.schedules.Schedules``."""

    def __init__(self, loop: Loop, found: schedules.Schedules) -> None:
        self._loop = loop
        self._schedules = found

    def create(self, name: str, topic: str, value: Any = b"", **options: Any) -> Schedule:
        """Publish ``value`` on ``topic`` again and again."""
        return self._loop.call(partial(self._schedules.create, name, topic, value, **options))

    def list(self, namespace: str | None = None) -> list[Schedule]:
        """All schedules by name, or those of one namespace."""
        return self._loop.call(self._schedules.list, namespace)

    def get(self, name: str) -> Schedule:
        """One schedule, with its next ten times."""
        return self._loop.call(self._schedules.get, name)

    def pause(self, name: str) -> Schedule:
        """Publish nothing until it is resumed."""
        return self._loop.call(self._schedules.pause, name)

    def resume(self, name: str) -> Schedule:
        """Go on with the first occurrence from now on."""
        return self._loop.call(self._schedules.resume, name)

    def delete(self, name: str) -> None:
        """Forget it; what it has published stays."""
        self._loop.call(self._schedules.delete, name)
