"""The simulated world: broker processes, the database server and the network."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import trio
import trio.testing

import escapement
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.client.settings import Settings
from escapement.errors import Disconnected
from escapement.names import TopicName
from escapement.storage import schema
from escapement.storage.bundles import bundle_of_name, set_bundle_count
from histories.history import History
from simulation.calls import Threads
from simulation.clocks import HOUR_S, LEASE_MS, MOST_SKEW_MS, TrueClock, WallClock
from simulation.database import Server, SimulatedEngine
from simulation.disk import simulated
from simulation.host import Host
from simulation.network import ClientStream, Network

ACK_WAIT_MS: Final = 1_800_000
# Small bounds, so that few messages reach them.
_LIMITS: Final = BrokerLimits(
    lease_ms=LEASE_MS,
    handshake_timeout_s=60.0,
    idle_timeout_s=22 * HOUR_S,
    checkpoint_interval_s=7 * HOUR_S,
    inbox_poll_s=6 * HOUR_S,
    max_sleep_s=5 * HOUR_S,
    ready_messages=12,
    deliver_messages=5,
    window_messages=16,
    sparse_generation_bytes=4096,
)
# How long it takes to notice that no broker listens.
_REFUSAL_S: Final = (5.0, 50.0)
# How often to look, each minute, whether all brokers have started.
_STARTING_LOOKS: Final = 600
_SETTINGS: Final = Settings(
    connect_timeout_s=60.0,
    request_timeout_s=0.5 * HOUR_S,
    close_timeout_s=120.0,
    heartbeat_timeout_s=120.0,
    reconnect_longest_s=60.0,
)


class World:
    """Broker processes on one database. ``run.py`` starts clients and faults beside them."""

    def __init__(self, seed: int, root: Path, clock: trio.testing.MockClock) -> None:
        self.seed = seed
        self.rng = self.chance("world")
        self.clock = TrueClock(clock)
        self.network = Network(self.chance("network"))
        self.server = Server(root / "log.sqlite3", self.clock.now_ms, self.chance("database"))
        self.threads = Threads()
        self.history = History(self.clock)
        self.bundles = self.rng.choice([1, 1, 1, 2])
        self.hosts = [self._host(root, n) for n in range(self.rng.choice([2, 2, 3]))]

    def chance(self, name: str) -> random.Random:
        """Return random numbers of their own for a part of the simulation."""
        return random.Random(f"{self.seed} {name}")

    def _host(self, root: Path, number: int) -> Host:
        directory = root / f"host{number}"
        directory.mkdir()
        config = BrokerConfig(
            ack_wait_ms=ACK_WAIT_MS, limits=_LIMITS, table_parallelism=2, seed=self.seed
        )
        skew_ms = self.rng.randint(-MOST_SKEW_MS, MOST_SKEW_MS)
        return Host(
            f"host{number}",
            directory,
            self.server,
            self.network,
            self.threads,
            WallClock(self.clock, skew_ms),
            config,
            self.bundles,
            self.chance(f"host{number}"),
            lambda host, error: self.history.end(host.name, error),
        )

    def bundle_of(self, topic: str) -> int:
        return bundle_of_name(TopicName.parse(topic).full, self.bundles)

    def owner(self, bundle_id: int) -> Host | None:
        """Return a process that runs a broker of a bundle and is not paused."""
        running = [h for h in self.hosts if bundle_id in h.running and not h.process.paused]
        return self.rng.choice(running) if running else None

    def connect(self, bundle_id: int) -> AbstractAsyncContextManager[escapement.Broker]:
        """Connect a client to the broker of a bundle, wherever it is."""
        heartbeat_s = self.rng.uniform(2, 12) * HOUR_S
        return escapement.connect(
            "escapement://simulated",
            stream_factory=self._dialling(bundle_id),
            settings=replace(_SETTINGS, heartbeat_s=heartbeat_s),
        )

    def _dialling(self, bundle_id: int) -> Callable[[], object]:
        async def dial() -> ClientStream:
            await trio.sleep(0.001)
            hosts = self.hosts[:]
            self.rng.shuffle(hosts)
            for host in hosts:
                if (stream := host.connect(bundle_id)) is not None:
                    return stream
            await trio.sleep(self.rng.uniform(*_REFUSAL_S))
            raise Disconnected("no broker listens, says the simulation")

        return dial

    async def until_served(self) -> None:
        """Wait until each bundle has a broker."""
        for _ in range(_STARTING_LOOKS):
            if all(self.owner(bundle_id) for bundle_id in range(self.bundles)):
                return
            await trio.sleep(60)
        raise AssertionError("no broker has started")


@asynccontextmanager
async def simulated_world(
    seed: int, root: Path, clock: trio.testing.MockClock
) -> AsyncIterator[tuple[World, trio.Nursery]]:
    """Start all broker processes, and kill them at the end of the ``async with`` block."""
    world = World(seed, root, clock)
    try:
        first = SimulatedEngine(world.server)
        schema.migrate(first)
        if world.bundles > 1:
            set_bundle_count(first, world.bundles)
        with simulated([host.disk for host in world.hosts]):
            async with trio.open_nursery() as nursery:
                for host in world.hosts:
                    host.start(nursery)
                try:
                    await world.until_served()
                    yield world, nursery
                finally:
                    with trio.CancelScope(shield=True):  # a paused process does not end
                        for host in world.hosts:
                            if host.is_up:
                                await host.kill(power_failure=False, noticed=True)
                nursery.cancel_scope.cancel()
    finally:
        world.threads.close()
        world.server.engine.close()
