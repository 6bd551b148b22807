"""The stage of a measurement: a broker, and a new namespace for its topics.

A ``Setting`` has the options of a measurement that the user gave. A ``Stage`` is made from it. At
the end, the stage deletes its namespace and topics.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from escapement.bench.host import Host, host
from escapement.bench.outcome import Figure
from escapement.bench.payload import PayloadSize
from escapement.client.connect import connect
from escapement.errors import EscapementError

# The longest time for deleting the topics at the end: a dead broker must not block the exit.
_CLEAR_S: Final = 10.0
# A callback that shows progress. Its arguments: the current activity, the amount done, the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all measurements share."""

    broker_url: str | None  # the URL of a running broker; None to start one
    data: Path | None  # the started broker's data directory; None for a temporary one
    log_url: str | None  # the URL of its log in MySQL; None for SQLite in the data directory
    tick_ms: int
    payload: PayloadSize
    batch_size: int  # messages in a batch
    in_flight: int  # most messages sent and without a receipt; at least ``batch_size``
    pending: int  # messages pending during the measurement
    runs: int
    progress: Progress

    def described(self) -> dict[str, Any]:
        """Return the settings that the figures depend on, by option name."""
        return {
            "batch-size": self.batch_size,
            "in-flight": self.in_flight,
            "payload-bytes": str(self.payload),
            "tick-ms": self.tick_ms,
            "pending": self.pending,
        }


class Stage:
    """A broker to measure, and topics that nothing else uses."""

    def __init__(self, setting: Setting, broker_host: Host) -> None:
        self.setting = setting
        self.host = broker_host
        self.rng = np.random.default_rng()
        self.engine = ""
        self._namespace = f"bench/{secrets.token_hex(4)}"
        self._topics = 0

    async def prepare(self) -> None:
        """Create the namespace with the setting's tick. Ask the broker which database it uses."""
        await self.admin("namespaces.create", namespace=self._namespace)
        await self.admin(
            "namespaces.enable_delayed_message",
            namespace=self._namespace,
            tick_ms=self.setting.tick_ms,
        )
        stats = await self.admin("broker.stats")
        self.engine = "mysql" if stats["log"].startswith("mysql://") else "sqlite"

    async def admin(self, verb: str, **arguments: Any) -> Any:
        """Send an admin verb to the broker over a new connection, and return the answer."""
        async with connect(self.host.url) as broker:
            return await broker.admin(verb, **arguments)

    async def clear(self) -> None:
        """Delete the topics, with their pending messages, and the namespace."""
        listed = await self.admin("topics.list", namespace=self._namespace)
        for topic in listed["topics"]:
            await self.admin("topics.delete", topic=topic)
        await self.admin("namespaces.delete", namespace=self._namespace)

    def new_topic(self) -> str:
        """Return the name of a topic that does not exist yet."""
        self._topics += 1
        return f"{self._namespace}/run-{self._topics}"

    async def new_subscription(self, policy: dict[str, str] | None = None) -> tuple[str, str]:
        """Create a topic with a shared subscription. Return the names of both."""
        topic = self.new_topic()
        await self.admin(
            "subscriptions.create", topic=topic, subscription="bench", policy=policy or {}
        )
        return topic, "bench"


class CpuMeter:
    """A meter of the processor time that client and broker use after its creation.

    On a machine with other load, processor time is more reliable than the clock.
    """

    def __init__(self, broker_host: Host) -> None:
        self._host = broker_host
        self._broker_s = broker_host.cpu_seconds()
        self._client_s = time.process_time()

    def read(self) -> dict[str, Figure]:
        """Return the client's processor seconds and, if the bench started it, the broker's."""
        found: dict[str, Figure] = {
            "client_cpu_seconds": round(time.process_time() - self._client_s, 3)
        }
        broker_s = self._host.cpu_seconds()
        if self._broker_s is not None and broker_s is not None:
            found["broker_cpu_seconds"] = round(broker_s - self._broker_s, 2)
        return found


@asynccontextmanager
async def stage(setting: Setting) -> AsyncIterator[Stage]:
    """Yield a stage on the running broker that ``setting`` names or, if none, on a started one."""
    async with host(setting.broker_url, setting.data, setting.log_url) as broker_host:
        made = Stage(setting, broker_host)
        await made.prepare()
        try:
            yield made
        finally:
            # A broker that runs on must not keep the messages of the measurement.
            with trio.move_on_after(_CLEAR_S, shield=True), suppress(EscapementError):
                await made.clear()


def now_ms() -> int:
    """Return the wall-clock time. Lateness is measured by this clock."""
    return time.time_ns() // 1_000_000


async def sleep_until(at_ms: int) -> None:
    """Sleep until the wall clock shows ``at_ms``, provided that it is not set meanwhile."""
    await trio.sleep(max(0, at_ms - now_ms()) / 1000)
