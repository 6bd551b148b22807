"""A node: the brokers of the bundles that this process owns.

A node looks at the database every ``LOOK_S``: which nodes live, and who owns which bundle. Its
:class:`Balancer <escapement.broker.node.balancer.Balancer>` decides what to take and what to
release. For each bundle that the node takes, it starts a ``Broker``, which takes the lease,
recovers and serves. To release a bundle, the node stops its broker. That is a clean stop: dispatch
ends, messages in flight are returned with their attempts, a checkpoint is written, clients are told
the next owner, and the lease is released.

The bundles do not disturb each other: a broker that has lost its lease ends, and a broker with a
damaged index is started again and rebuilds it. A broker that cannot start, because it
lacks a table set or a connection, gives its bundle back, and the node tries it again later. Any
other failure of a broker ends the node, because its cause is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from escapement.broker.broker import Broker
from escapement.broker.cluster import ClusterView
from escapement.broker.config import BrokerConfig
from escapement.broker.connection_wait import when_connected
from escapement.broker.crash import one_error
from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.front.certificates import Certificates
from escapement.broker.front.front import Front
from escapement.broker.lookout import Lookout
from escapement.broker.membership import RENEWALS_PER_LEASE, Membership
from escapement.broker.node.balancer import Balancer, Decision, Situation
from escapement.broker.node.catalog_readers import CatalogReaders
from escapement.broker.node.failed_starts import FailedStarts, may_start_later
from escapement.broker.node.grace import Grace
from escapement.broker.node.hint_log import HintLog
from escapement.broker.node.node_directory import NodeDirectory
from escapement.broker.node.owned_bundle import OwnedBundle
from escapement.broker.node.preparation import prepare
from escapement.broker.node.reception import Reception
from escapement.broker.runners import Runners
from escapement.broker.session.observers import Observers
from escapement.broker.shared_parts import SharedParts
from escapement.clock import Clock
from escapement.errors import EscapementError, LeaseHeld, StorageError, StorageUnavailable
from escapement.event_log import EventLog, log_fields
from escapement.storage.bundles import BUNDLES, CATALOG, PLACED, shared_numbers
from escapement.storage.catalog.catalog import misplaced_topics
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.data_directory import index_directory
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.engine.connection_pool import KEPT_S, ConnectionPool
from escapement.storage.lease import Identity
from escapement.storage.ownership import LiveBroker, Ownership, look_at_all
from escapement.storage.schema import log_identity

_log = EventLog(__name__)

# How often a node looks at the nodes and bundles. A look is one query.
LOOK_S: Final = 1.0
# With a short lease, a node looks more often: so many times in the duration of a lease.
_LOOKS_PER_LEASE: Final = 10
# How long a node keeps the list of topics that are in other bundles than their names say. It takes
# some seconds to read if there are a million topics.
_PLACE_S: Final = 10.0


class Node:
    """The brokers of the bundles that this process owns.

    Args:
      data: the data directory, which has the index of each bundle.
      identity: the identity of the process.
      address: the address of this process for clients, ``host:port``.
      make_runners: returns the runners of one broker.
      on_ready: called with each broker that begins to serve.
      certificates: the TLS settings of new connections; None: connections have no TLS.
      bundles: the number of bundles of a new database; None: one.

    Attributes:
      membership: the membership of the process.
      draining: whether an operator lets the node give all its bundles to others.
    """

    def __init__(
        self,
        engine: Engine,
        data: Path,
        identity: Identity,
        address: str,
        clock: Clock,
        make_runners: Callable[[], Runners],
        config: BrokerConfig,
        certificates: Certificates | None = None,
        on_ready: Callable[[Broker], None] = lambda broker: None,
        bundles: int | None = None,
    ) -> None:
        self.config = config
        self.stopping = False
        self.draining = False
        self.stopped = trio.Event()  # set when ``run`` is about to return or raise
        self.directory = NodeDirectory(identity.owner_id)
        self.reception = Reception(self.directory, address, lambda: self.brokers)
        self._output = OutputBound(config.limits.output_bytes)
        lease_ms = config.limits.lease_ms
        # A successor waits for the locks of this process, and kills only the listed connections.
        engine = engine.limited(silence_s=lease_ms / 1000)
        self._engine = engine
        self._data = data
        self._identity = identity
        self._clock = clock
        self._make_runners = make_runners
        self._on_ready = on_ready
        self._bundles = bundles
        own = make_runners()
        self._work = own.work
        self.membership = Membership(engine, identity, clock, own.commits, lease_ms, address)
        self._balancer = Balancer(identity.owner_id, lease_ms // RENEWALS_PER_LEASE)
        self._grace = Grace(lease_ms // RENEWALS_PER_LEASE)
        self._look_s = min(LOOK_S, lease_ms / 1000 / _LOOKS_PER_LEASE)
        # Closed here before the server does it, which would log it.
        self._connections = ConnectionPool(engine, min(KEPT_S, lease_ms / 2000))
        self._shared_writer = SharedWriter(
            engine, own.commits, config.limits.commit_lanes, config.max_commits_per_second
        )
        observers = Observers(engine, identity, clock, self._work, self._connections)
        choose = self.reception.choose
        self.front = Front(choose, config.limits, self._output, certificates, observers)
        self._lookout = Lookout(self._connections, clock, self._work, config.limits)
        self._owned: dict[int, OwnedBundle] = {}
        self._failed_starts = FailedStarts()
        self._hint_log = HintLog()
        self._catalog_version = 0  # in the database
        self._catalog_readers = CatalogReaders()
        self._placed_version, self._placed_at_s = 0, 0.0  # when the exceptions were read
        self._hurry = trio.Event()  # set when the node must look or end at once

    @property
    def brokers(self) -> list[Broker]:
        """The brokers that serve clients, by the ids of their bundles."""
        found = [bundle.serving for _, bundle in sorted(self._owned.items())]
        return [broker for broker in found if broker is not None]

    def broker_of(self, bundle_id: int) -> Broker | None:
        """Return the broker of a bundle, if it serves clients in this process."""
        bundle = self._owned.get(bundle_id)
        return None if bundle is None else bundle.serving

    def stop(self) -> None:
        """Stop all brokers cleanly, release their bundles, and end."""
        self.stopping = True
        # At once: a look may be waiting for a database that does not answer.
        self.membership.drain()
        self._release(list(self._owned))
        self._hurry.set()

    # -- the life of a node ----------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take the free bundles, report "started", and serve until :meth:`stop`.

        Raises:
          LeaseHeld: if the database is SQLite, and another process uses it; or if a process with a
            copy of the data directory is alive.
          StorageError: if the database is unsuitable, or rejected a statement that must succeed.
        """
        try:
            with one_error():
                await when_connected(lambda: self._work(self._prepare))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.membership.run)
                    nursery.start_soon(self._shared_writer.run, self.membership.member)
                    nursery.start_soon(self._lookout.run)
                    nursery.start_soon(
                        self.reception.watch,
                        lambda: self.membership.left_ms,
                        self.front.send_away,
                        self._look_s,
                    )
                    await self._begin(nursery)
                    task_status.started()
                    await self._live(nursery)
                    nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await self._work(self._leave)
        finally:
            self.membership.close()
            self._connections.close()
            self.stopped.set()

    def _prepare(self) -> None:
        """Prepare the database, and become a member. Blocking."""
        prepare(self._engine, self._bundles, self.config.new_parallelism)
        with self._connections.use() as connection:
            self.reception.log_identity = log_identity(connection)
        if not self._engine.is_shared:
            self._check_alone()
        self.membership.register()

    def _leave(self) -> None:
        """End the membership, so that other nodes need not wait. Blocking."""
        try:
            self.membership.leave()
        except EscapementError as error:
            _log.warning("node.not_left", "cannot end the membership; it will expire: %s", error)

    async def _begin(self, nursery: trio.Nursery) -> None:
        """Start the brokers of all bundles that are free and belong here, and wait for them."""
        await when_connected(self._look)
        decision = self._decide()
        async with trio.open_nursery() as starts:
            for bundle_id in decision.take:
                starts.start_soon(nursery.start, self._own, bundle_id, False)

    async def _live(self, nursery: trio.Nursery) -> None:
        """Look, take and release until the node shall stop; then wait until its brokers have."""
        while not self.stopping:
            with trio.move_on_after(self._look_s):
                await self._hurry.wait()
            self._hurry = trio.Event()
            if self.stopping:
                break
            try:
                await self._look()
            except (StorageUnavailable, TransactionAborted):
                continue  # the renewals of the membership report it
            if not self.stopping:
                self._catalog_readers.look(self.brokers, self._catalog_version, nursery)
                decision = self._decide()
                self._release(decision.release)
                for bundle_id in decision.take:
                    nursery.start_soon(self._own, bundle_id, True)
        while self._owned:
            await self._hurry.wait()
            self._hurry = trio.Event()

    async def _look(self) -> None:
        """Read the nodes, the owners of the bundles, and the numbers that all nodes share."""
        live, seen, numbers = await self._work(self._read)
        nodes, bundles = self._grace.apply(self._clock.lease_ms(), live, seen)
        if self._grace.unseen_ms:
            self._end_outage([row.name for one, row in nodes.items() if one not in live])
        self.directory.learn(nodes, bundles)
        self._hint_log.look(ClusterView(nodes, bundles))
        self._note_draining(nodes.get(self._identity.owner_id))
        await self._place_topics(numbers)
        self._catalog_version = numbers[CATALOG]

    def _end_outage(self, awaited: Sequence[str]) -> None:
        """Renew at once, because other nodes wait for it as this node waits for them."""
        self.membership.renew_soon()
        if awaited:
            _log.info(
                "node.grace",
                "no look at the database for %d ms; these nodes get time to renew: %s",
                self._grace.unseen_ms,
                ", ".join(awaited),
            )

    async def _place_topics(self, numbers: Mapping[str, int]) -> None:
        """Read which topics are in other bundles than their names say, if that may have changed."""
        count, version, now_s = numbers[BUNDLES], numbers[CATALOG], trio.current_time()
        if count == self.directory.count:
            # Deletions of such topics change the version of the catalog, as other changes do.
            is_old = self.directory.has_exceptions and version != self._placed_version
            if not is_old or now_s - self._placed_at_s < _PLACE_S:
                return
        exceptions = await self._work(self._misplaced, count, numbers[PLACED])
        self.directory.place_topics(count, exceptions)
        self._placed_version, self._placed_at_s = version, now_s

    def _note_draining(self, row: LiveBroker | None) -> None:
        """Do as an operator has written into the row of this node; None: it has expired."""
        if row is None or row.draining is self.draining:
            return
        self.draining = row.draining
        if self.draining:
            _log.info("node.draining", "the node gives all its bundles to other nodes")
        else:
            _log.info("node.undrained", "the node takes bundles again")

    def _read(self) -> tuple[dict[str, LiveBroker], dict[int, Ownership], dict[str, int]]:
        with self._connections.use() as connection:
            return *look_at_all(self._engine, connection), shared_numbers(connection)

    def _misplaced(self, count: int, up_to_id: int) -> dict[str, int]:
        with self._connections.use() as connection:
            return misplaced_topics(connection, count, up_to_id)

    def _check_alone(self) -> None:
        """Raise ``LeaseHeld`` if another process is alive: only one can use a SQLite file."""
        nodes, _, _ = self._read()
        for node in nodes.values():
            if node.owner_id != self._identity.owner_id:
                raise LeaseHeld(
                    f"broker {node.name!r} ({node.owner_id}) uses this SQLite database, and only"
                    " one broker can. Stop it, or put the log into MySQL for several brokers"
                )

    def _decide(self) -> Decision:
        me, owned = self._identity.owner_id, self._owned
        rows = self.directory.bundles.values()
        # A bundle whose lease names this node, but that it does not run, is free for this node.
        free = {row.bundle_id for row in rows if row.free or row.owner_id == me} - owned.keys()
        free -= self._failed_starts.resting(trio.current_time())
        nodes = {one.owner_id: one.draining for one in self.directory.nodes.values()}
        nodes[me] = self.draining
        moving = {b for b, bundle in owned.items() if bundle.serving is None}
        pins = {row.bundle_id: row.pinned_to for row in rows if row.pinned_to}
        return self._balancer.decide(
            Situation(self._clock.lease_ms(), nodes, free, owned.keys(), moving, pins)
        )

    def _release(self, bundle_ids: Sequence[int]) -> None:
        for bundle_id in bundle_ids:
            self.directory.leaving.add(bundle_id)
            self._owned[bundle_id].release()

    async def _own(
        self,
        bundle_id: int,
        patient: bool,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the broker of a bundle until it is released or lost.

        Reports "started" when the broker serves, or another process owns the bundle.
        """
        begun = trio.Event()

        def ready(broker: Broker) -> None:
            self._failed_starts.forget(bundle_id)
            self._on_ready(broker)
            if not begun.is_set():
                begun.set()
                task_status.started()

        former = self.directory.former_owner_of(bundle_id)
        make = partial(self._make_broker, bundle_id)
        bundle = OwnedBundle(bundle_id, make, self.front, ready, former)
        self._owned[bundle_id] = bundle
        if self.stopping:  # since the node decided to take it
            bundle.release()
        try:
            with log_fields(bundle=bundle_id):
                try:
                    await bundle.run(patient=patient)
                except LeaseHeld as error:
                    if not self._engine.is_shared:
                        raise
                    _log.info("bundle.held", "another node has bundle %d: %s", bundle_id, error)
                except StorageError as error:
                    # A node that starts with one bundle has nothing else to serve.
                    alone = not patient and self.directory.count == 1
                    if begun.is_set() or not may_start_later(error, alone):
                        raise
                    pause_s = self._failed_starts.add(bundle_id, trio.current_time())
                    _log.error(
                        "bundle.not_started",
                        "bundle %d cannot start; the node tries it again in %d s: %s",
                        bundle_id,
                        pause_s,
                        error,
                    )
                if not begun.is_set():
                    begun.set()
                    task_status.started()
                if not bundle.is_free:
                    await self._let_go(bundle_id)
        finally:
            del self._owned[bundle_id]
            self.directory.leaving.discard(bundle_id)
            if bundle.released:
                self._hurry.set()

    async def _let_go(self, bundle_id: int) -> None:
        """Release a bundle whose broker has ended without releasing it; repeat it after failures.

        This node renews its membership, so otherwise no other node could ever take the bundle. When
        the node stops, the end of its membership frees the bundle.
        """
        while not self.stopping:
            try:
                if await self._work(self.membership.let_go, bundle_id):
                    _log.warning(
                        "bundle.let_go", "released bundle %d without a clean stop", bundle_id
                    )
                return
            except (StorageUnavailable, TransactionAborted):
                await trio.sleep(self._look_s)  # the renewals of the membership report an outage

    def _make_broker(self, bundle_id: int) -> Broker:
        count = self.directory.count
        broker = Broker(
            self._engine,
            index_directory(self._data, bundle_id),
            self._identity,
            self._clock,
            self._make_runners(),
            replace(self.config, limits=self.config.limits.of_bundle(count)),
            bundle_id,
            SharedParts(
                membership=self.membership,
                connections=self._connections,
                writer=None if count == 1 else self._shared_writer,
                lookout=self._lookout,
                output=self._output,
            ),
        )
        broker.directory = self.directory
        self._catalog_readers.made(broker, self._catalog_version)
        return broker
