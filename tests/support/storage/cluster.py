"""Several nodes on one database in one test, each with brokers of bundles, on a virtual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import trio
import trio.testing
from trio.testing import memory_stream_pair

import escapement
from escapement.broker.broker import Broker, BrokerConfig
from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.directory import Place, wanted_bundle
from escapement.broker.front.front import Front
from escapement.broker.node.node_directory import NodeDirectory
from escapement.broker.runners import Runners
from escapement.broker.shared_parts import SharedParts
from escapement.client.connect import Connecting
from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.lines import Lines
from escapement.client.connection.link import Stream
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.errors import Disconnected, LeaseLost
from escapement.protocol.commands import Moved
from escapement.storage.blocking import inline
from escapement.storage.bundles import BUNDLES, CATALOG, PLACED, set_bundle_count, shared_numbers
from escapement.storage.catalog.catalog import misplaced_topics
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Engine
from escapement.storage.lease import Identity
from escapement.storage.schema import migrate
from escapement.testing.clock import VirtualClock
from escapement.testing.world import MemoryStream
from support.storage.bundle_brokers import full

# Timeouts that no test reaches, because virtual time advances in large steps.
_FOREVER_S = 1e9
_FOREVER_MS = 10**12


class Node:
    """A process with one front, and a broker for each bundle that it owns."""

    def __init__(self, address: str, cluster: Cluster) -> None:
        self.address = address
        self.brokers: dict[int, Broker] = {}
        self.greeted: list[Mapping[str, Any]] = []  # the features of each Hello
        self.output = OutputBound(cluster.config.limits.output_bytes)
        self.front = Front(self._choose, cluster.config.limits, self.output)
        self._cluster = cluster

    def _choose(self, features: Mapping[str, Any]) -> Broker | Moved:
        self.greeted.append(features)
        wanted = wanted_bundle(features)
        bundle_id = min(self.brokers, default=0) if wanted is None else wanted
        if bundle_id in self.brokers:
            return self.brokers[bundle_id]
        place = self._cluster.owner_of(bundle_id)
        if place.address == self.address:
            place = Place("", place.epoch)
        return Moved(0, bundle_id, *place)


class Cluster:
    """The nodes, and the directory of their bundles. Use it through :func:`cluster`.

    Bundles move only when a test moves them.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        engine: Engine,
        data: Path,
        config: BrokerConfig,
        addresses: list[str],
        bundles: int,
    ) -> None:
        limits = replace(
            config.limits,
            handshake_timeout_s=_FOREVER_S,
            idle_timeout_s=_FOREVER_S,
            checkpoint_interval_s=_FOREVER_S,
            lease_ms=_FOREVER_MS,
        )
        self.config = replace(config, limits=limits)
        self.clock = VirtualClock(1_700_000_000_000)
        self._topics = NodeDirectory("")
        self._topics.place_topics(bundles, {})
        self.nodes = {address: Node(address, self) for address in addresses}
        self._nursery = nursery
        self._engine = engine
        self._data = data
        self._places = [Place("", 0)] * bundles
        self._incarnations: dict[int, trio.CancelScope] = {}
        self._overtaken: list[Broker] = []

    @property
    def count(self) -> int:
        return self._topics.count

    def bundle_of(self, topic: str) -> int:
        return self._topics.bundle_of(topic)

    def place_topics(self) -> int:
        """Read the bundles of topics, as a node does. Return the version of the catalog."""
        with closing(self._engine.connect()) as connection:
            numbers = shared_numbers(connection)
            count = numbers[BUNDLES]
            found = misplaced_topics(connection, count, numbers[PLACED])
        self._topics.place_topics(count, found)
        return numbers[CATALOG]

    async def add_bundles(self, count: int, address: str) -> None:
        """Add bundles, and start their brokers on a node. Existing topics stay where they are."""
        before = set_bundle_count(self._engine, count)
        self.place_topics()
        self._places += [Place("", 0)] * (count - before)
        for bundle_id in range(before, count):
            await self.start(bundle_id, address)

    def misplace(self, bundle_id: int, address: str) -> None:
        """Name a wrong address for the owner of a bundle, as one that advertises it does."""
        self._places[bundle_id] = Place(address, self._places[bundle_id].epoch)

    def owner_of(self, bundle_id: int) -> Place:
        return self._places[bundle_id]

    def next_owner_of(self, bundle_id: int) -> Place | None:
        place = self.owner_of(bundle_id)
        return place if self.count > 1 or place.address else None

    def next_wake_ms(self) -> int | None:
        """Return when a topic of any running broker next has work."""
        wakes = [
            broker.next_wake_ms()
            for node in self.nodes.values()
            for broker in node.brokers.values()
        ]
        return min((at_ms for at_ms in wakes if at_ms is not None), default=None)

    async def start(self, bundle_id: int, address: str) -> None:
        """Start the broker of a bundle on a node."""
        await self._nursery.start(self._live, bundle_id, self.nodes[address])

    async def stop(self, bundle_id: int, successor: str = "") -> None:
        """Stop the broker of a bundle cleanly. Its clients hear who the successor will be."""
        place = self._places[bundle_id]
        node = self.nodes[place.address]
        self._places[bundle_id] = Place(successor, place.epoch)
        broker = node.brokers.pop(bundle_id)
        broker.stop()
        await broker.stopped.wait()

    async def crash(self, bundle_id: int) -> None:
        """End the broker of a bundle at once, without saving anything, as a kill does."""
        place = self._places[bundle_id]
        broker = self.nodes[place.address].brokers.pop(bundle_id)
        self._places[bundle_id] = Place("", place.epoch)
        self._incarnations[bundle_id].cancel()
        await broker.stopped.wait()

    async def move(self, bundle_id: int, address: str) -> None:
        """Hand a bundle over to another node."""
        await self.stop(bundle_id, address)
        await self.start(bundle_id, address)

    async def overtake(self, bundle_id: int, address: str) -> None:
        """Start the broker of a bundle on another node. The old one has yet to find out."""
        place = self._places[bundle_id]
        self._overtaken.append(self.nodes[place.address].brokers.pop(bundle_id))
        self._places[bundle_id] = Place("", place.epoch + 1)
        await self.start(bundle_id, address)

    async def dial(self, address: str) -> MemoryStream:
        """Open a connection to a node. Raises ``Disconnected`` if no node has the address."""
        await trio.lowlevel.checkpoint()
        if address not in self.nodes:
            raise Disconnected(f"nothing listens on {address}")
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self.nodes[address].front.serve_stream, theirs)
        return MemoryStream(ours)

    async def _live(self, bundle_id: int, node: Node, task_status: trio.TaskStatus[None]) -> None:
        broker = Broker(
            self._engine,
            index_directory(self._data, bundle_id),
            Identity(f"{bundle_id:032x}", node.address),
            self.clock,
            Runners.all_by(inline),
            self.config,
            bundle_id,
            SharedParts(output=node.output),
        )
        broker.directory = self
        with trio.CancelScope() as incarnation:
            self._incarnations[bundle_id] = incarnation
            try:
                await self._run(broker, node, task_status)
            except* LeaseLost:
                assert broker in self._overtaken

    async def _run(self, broker: Broker, node: Node, task_status: trio.TaskStatus[None]) -> None:
        bundle_id = broker.bundle_id
        async with trio.open_nursery() as nursery:
            await nursery.start(node.front.run_broker, broker)
            place = Place(node.address, self._places[bundle_id].epoch + 1)
            self._places[bundle_id], node.brokers[bundle_id] = place, broker
            task_status.started()


@asynccontextmanager
async def cluster(
    engine: Engine,
    data: Path,
    config: BrokerConfig | None = None,
    addresses: tuple[str, ...] = ("a:7650", "b:7650"),
    bundles: int = 2,
) -> AsyncIterator[Cluster]:
    """Run nodes on an empty database. Bundle N begins on node N, counted modulo their number."""
    migrate(engine)
    set_bundle_count(engine, bundles)
    async with trio.open_nursery() as nursery:
        found = Cluster(
            nursery, engine, data, config or BrokerConfig(seed=0), list(addresses), bundles
        )
        found.clock.next_wake_ms = found.next_wake_ms
        for bundle_id in range(bundles):
            await found.start(bundle_id, addresses[bundle_id % len(addresses)])
        yield found
        nursery.cancel_scope.cancel()


class Dialled(Protocol):
    """Nodes to which a client opens connections."""

    @property
    def clock(self) -> VirtualClock: ...

    async def dial(self, address: str) -> MemoryStream: ...


def connected(
    found: Dialled, *addresses: str, token: str | None = None, observer: bool = False
) -> AbstractAsyncContextManager[escapement.Broker]:
    """Connect a client by these addresses."""

    async def dial(address: Address) -> Stream:
        return await found.dial(f"{address.host}:{address.port}")

    given = Addresses.parse("escapement://" + ",".join(addresses or ("a",)))
    source = TokenSource(token, None)
    settings = Settings(heartbeat_s=None, observer=observer)
    return Connecting(Lines(dial, given, "", settings, source, clock_s=found.clock.elapsed_s))


def named(found: Cluster, bundle_id: int, number: int = 1, prefix: str = "t") -> list[str]:
    """Return the names of topics that belong to a bundle."""
    names = (f"{prefix}{at}" for at in count())
    return list(islice((n for n in names if found.bundle_of(full(n)) == bundle_id), number))


async def settle(found: Cluster, is_done: Callable[[], bool]) -> None:
    """Advance the time in small steps until a condition holds."""
    for _ in range(400):
        await trio.testing.wait_all_tasks_blocked()
        if is_done():
            return
        await found.clock.advance(seconds=0.05)
    raise AssertionError("the condition never held")


async def result(found: Cluster, call: Callable[[], Awaitable[Any]]) -> Any:
    """Return what a call returns, while the time advances."""
    results: list[Any] = []

    async def run() -> None:
        results.append(await call())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await settle(found, lambda: bool(results))
    return results[0]
