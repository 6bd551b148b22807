"""Where measurements take place: a broker, a namespace with its tick, fresh topics."""

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

# For clearing up, also after an interruption: a broker that is gone must not hold up the end.
_CLEAR_S: Final = 10.0
# Told what is being done, how much of it is done, and of how much.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """What all measurements have in common."""

    broker_url: str | None  # of one that runs; None starts one
    data: Path | None  # its data directory; None is a temporary one
    log_url: str | None  # its log; None is SQLite in the data directory
    tick_ms: int
    payload: PayloadSize
    batch_size: int  # messages sent as one
    in_flight: int  # messages without a receipt at once; a batch at least
    pending: int  # messages that wait for their time meanwhile
    runs: int
    progress: Progress

    def described(self) -> dict[str, Any]:
        """What says how it was measured, by the names of the options."""
        return {
            "batch-size": self.batch_size,
            "in-flight": self.in_flight,
            "payload-bytes": str(self.payload),
            "tick-ms": self.tick_ms,
            "pending": self.pending,
        }


class Stage:
    """A broker to measure, and topics that nobody else uses."""

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
        """Ask the broker, on a connection of its own."""
        async with connect(self.host.url) as broker:
            return await broker.admin(verb, **arguments)

    async def clear(self) -> None:
        """Delete the topics, with what is still pending on them, and the namespace."""
        listed = await self.admin("topics.list", namespace=self._namespace)
        for topic in listed["topics"]:
            await self.admin("topics.delete", topic=topic)
        await self.admin("namespaces.delete", namespace=self._namespace)

    def new_topic(self) -> str:
        """The name of a topic that does not exist yet."""
        self._topics += 1
        return f"{self._namespace}/run-{self._topics}"

    async def new_subscription(self, policy: dict[str, str] | None = None) -> tuple[str, str]:
        """A topic with a shared subscription, and the subscription's name."""
        topic = self.new_topic()
        await self.admin(
            "subscriptions.create", topic=topic, subscription="bench", policy=policy or {}
        )
        return topic, "bench"


class CpuMeter:
    """How long client and broker compute, from its making on.

    On a machine that does other things too, this says more than the clock does.
    """

    def __init__(self, broker_host: Host) -> None:
        self._host = broker_host
        self._broker_s = broker_host.cpu_seconds()
        self._client_s = time.process_time()

    def read(self) -> dict[str, Figure]:
        """The seconds so far, by name; the broker's only if the process is ours."""
        found: dict[str, Figure] = {
            "client_cpu_seconds": round(time.process_time() - self._client_s, 3)
        }
        broker_s = self._host.cpu_seconds()
        if self._broker_s is not None and broker_s is not None:
            found["broker_cpu_seconds"] = round(broker_s - self._broker_s, 2)
        return found


@asynccontextmanager
async def stage(setting: Setting) -> AsyncIterator[Stage]:
    """A stage on the broker that the setting names, or on one that it starts."""
    async with host(setting.broker_url, setting.data, setting.log_url) as broker_host:
        made = Stage(setting, broker_host)
        await made.prepare()
        try:
            yield made
        finally:
            # A broker that goes on running must not deliver what nobody waits for.
            with trio.move_on_after(_CLEAR_S, shield=True), suppress(EscapementError):
                await made.clear()


def now_ms() -> int:
    """The wall clock; lateness is measured against it."""
    return time.time_ns() // 1_000_000


async def sleep_until(at_ms: int) -> None:
    """Return when the wall clock shows ``at_ms``, or a little later if it was set."""
    await trio.sleep(max(0, at_ms - now_ms()) / 1000)
