"""The simulated world: broker processes, the database server and the network."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio
import trio.testing

import escapement
from escapement.broker.broker import Broker, BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.client.connect import Connecting
from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.lines import Lines
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.errors import Disconnected
from escapement.names import TopicName
from escapement.storage import schema
from escapement.storage.bundles import bundle_of_name, set_bundle_count
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.sqlite import SqliteEngine
from histories.history import History
from simulation.application import ApplicationServer, SimulatedApplication, reached_by_ways
from simulation.calls import Threads, waiting_members
from simulation.checks.terms import Terms
from simulation.clocks import HOUR_S, LEASE_MS, MOST_SKEW_MS, TrueClock, WallClock
from simulation.database import Server, SimulatedEngine
from simulation.files import simulated
from simulation.host import Host
from simulation.network import ClientStream, Network
from simulation.sharing import Sharing

ACK_WAIT_MS: Final = 1_800_000
# Small bounds, so that few messages reach them.
LIMITS: Final = BrokerLimits(
    lease_ms=LEASE_MS,
    handshake_timeout_s=60.0,
    idle_timeout_s=22 * HOUR_S,
    checkpoint_interval_s=7 * HOUR_S,
    inbox_poll_s=6 * HOUR_S,
    max_sleep_s=5 * HOUR_S,
    ready_messages=12,
    deliver_messages=5,
    unacked_messages=24,
    window_messages=16,
    index_cache_bytes=4096,
    sparse_generation_bytes=4096,
)
# The share of clients that may know some addresses only, and learn the others from brokers.
_PARTIAL_SHARE: Final = 0.3
# How long it takes to notice that no process listens.
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

    def __init__(
        self, seed: int, root: Path, clock: trio.testing.MockClock, application: str
    ) -> None:
        self.seed = seed
        self.rng = self.chance("world")
        self.clock = TrueClock(clock)
        self.network = Network(self.chance("network"))
        database = SqliteEngine(root / "log.sqlite3")
        self.server = Server(database, self.clock.now_ms, self.chance("database"))
        self.threads = Threads()
        self.history = History(self.clock)
        self.terms: dict[int, Terms] = defaultdict(Terms)  # of each bundle
        self.sharing = Sharing(self.history.counts)
        self.application: SimulatedApplication | None = None
        if application:
            address = MysqlAddress.parse(application)
            served = ApplicationServer(address, self.clock, self.chance("application"))
            self.application = SimulatedApplication(served, application)
            self.application.install()
        self.token: str | None = None  # of clients that have none of their own
        self.bundles = self.rng.choice([1, 1, 2, 3, 4])
        self.hosts = [self._host(root, n) for n in range(self.rng.choice([2, 2, 3]))]

    def chance(self, name: str) -> random.Random:
        """Return random numbers of their own for a part of the simulation."""
        return random.Random(f"{self.seed} {name}")

    def _host(self, root: Path, number: int) -> Host:
        directory = root / f"host{number}"
        directory.mkdir()
        served = None if self.application is None else self.application.server
        databases = () if served is None else (served.address,)
        config = BrokerConfig(
            ack_wait_ms=ACK_WAIT_MS,
            limits=LIMITS,
            table_parallelism=2,
            outboxes=databases,
            tables=databases,
            seed=self.seed,
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
            self.chance(f"host{number}"),
            self._taken,
            lambda host, error: self.history.end(host.name, error),
            served,
        )

    def bundle_of(self, topic: str) -> int:
        """Return the bundle of a topic that is created before the operator adds bundles."""
        return bundle_of_name(TopicName.parse(topic).full, self.bundles)

    def _taken(self, host: Host, broker: Broker) -> None:
        self.terms[broker.bundle_id].take(self.history.now_s(), host.process_name)
        self.history.counts["bundles taken"] += 1

    def connect(
        self,
        *,
        knows_all: bool = False,
        at: Host | None = None,
        streams: list[ClientStream] | None = None,
        token: str | None = None,
    ) -> AbstractAsyncContextManager[escapement.Broker]:
        """Connect a client, which knows the addresses of all processes or of some.

        Args:
          knows_all: whether it knows all of them. In the first half hour of a run, a client that
            knows one may get no answer: a node looks for the owners of bundles as rarely as that.
          at: the only process whose address it knows.
          streams: gets the streams of all its connections, for a client that is killed.
          token: its token, "" for none; None for that of all clients.
        """
        known = [at] if at is not None else self.rng.sample(self.hosts, len(self.hosts))
        if at is None and not knows_all and self.rng.random() < _PARTIAL_SHARE:
            known = known[: self.rng.randint(1, len(known))]
        addresses = Addresses.parse("escapement://" + ",".join(host.address for host in known))
        settings = replace(_SETTINGS, heartbeat_s=self.rng.uniform(2, 12) * HOUR_S)
        return Connecting(
            Lines(
                partial(self._dial, [] if streams is None else streams),
                addresses,
                "",
                settings,
                TokenSource(self.token if token is None else token),
                clock_s=self.clock.now_s,
            )
        )

    async def _dial(self, streams: list[ClientStream], address: Address) -> ClientStream:
        await trio.sleep(0.001)
        (host,) = (one for one in self.hosts if one.name == address.host)
        if (stream := host.connect()) is None:
            await trio.sleep(self.rng.uniform(*_REFUSAL_S))
            raise Disconnected(f"{address} does not listen, says the simulation")
        streams.append(stream)
        return stream

    async def until_served(self) -> None:
        """Wait until each bundle has a broker."""
        for _ in range(_STARTING_LOOKS):
            serving = {broker.bundle_id for host in self.hosts for broker in host.brokers}
            if len(serving) == self.bundles:
                return
            await trio.sleep(60)
        raise AssertionError("no broker has started")


@asynccontextmanager
async def simulated_world(
    seed: int, root: Path, clock: trio.testing.MockClock, application: str = ""
) -> AsyncIterator[tuple[World, trio.Nursery]]:
    """Start all broker processes, and kill them at the end of the ``async with`` block.

    Args:
      application: the URL of an empty database on a real server, for an application; "": none.
    """
    world = World(seed, root, clock, application)
    try:
        first = SimulatedEngine(world.server)
        schema.migrate(first)
        if world.bundles > 1:
            set_bundle_count(first, world.bundles)
        disks = [host.disk for host in world.hosts]
        with (
            simulated(disks, world.server.locks),
            waiting_members(world.server.locks),
            world.sharing.watched(),
            reached_by_ways(world.clock),
        ):
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
