"""The surroundings of a measurement: a broker, a namespace with its tick, new topics."""

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

# The time to clean up, also after an interrupt: a dead broker must not delay the end.
_CLEAR_S: Final = 10.0
# Called with the current activity, how much of it is done, and the total.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings that all measurements share."""

    broker_url: str | None  # of a running broker; None starts one
    data: Path | None  # its data directory; None for a temporary one
    log_url: str | None  # its log; None for SQLite in the data directory
    tick_ms: int
    payload: PayloadSize
    batch_size: int  # messages in a batch
    in_flight: int  # the most messages without a receipt; at least a batch
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
        """Create the namespace."""
        await self.admin("namespaces.create", namespace=self._namespace)
        await self.admin(
            "namespaces.enable_delayed_message",
            namespace=self._namespace,
            tick_ms=self.setting.tick_ms,
        )
        stats = await self.admin("broker.stats")
        self.engine = "mysql" if stats["log"].startswith("mysql://") else "sqlite"

    async def admin(self, verb: str, **arguments: Any) -> Any:
        """Carry out an admin verb on a connection of its own."""
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
    """A meter of the processor time of client and broker since its creation.

    On a machine with other load, processor time is more reliable than the clock.
    """

    def __init__(self, broker_host: Host) -> None:
        self._host = broker_host
        self._broker_s = broker_host.cpu_seconds()
        self._client_s = time.process_time()

    def read(self) -> dict[str, Figure]:
        """Return the seconds so far, by name; the broker's only if the process is ours."""
        found: dict[str, Figure] = {
            "client_cpu_seconds": round(time.process_time() - self._client_s, 3)
        }
        broker_s = self._host.cpu_seconds()
        if self._broker_s is not None and broker_s is not None:
            found["broker_cpu_seconds"] = round(broker_s - self._broker_s, 2)
        return found


@asynccontextmanager
async def stage(setting: Setting) -> AsyncIterator[Stage]:
    """Yield a stage on the broker that the setting names, or on a new one."""
    async with host(setting.broker_url, setting.data, setting.log_url) as broker_host:
        made = Stage(setting, broker_host)
        await made.prepare()
        try:
            yield made
        finally:
            # A broker that keeps running must not keep the messages of the measurement.
            with trio.move_on_after(_CLEAR_S, shield=True), suppress(EscapementError):
                await made.clear()


def now_ms() -> int:
    """Return the time of the wall clock, which lateness is measured against."""
    return time.time_ns() // 1_000_000


async def sleep_until(at_ms: int) -> None:
    """Sleep until the wall clock shows ``at_ms``, unless the clock is set meanwhile."""
    await trio.sleep(max(0, at_ms - now_ms()) / 1000)
