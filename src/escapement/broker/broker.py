"""The broker: its start, the services it offers to sessions, and its stop.

One task tree::

    Broker.run
    ├─ Membership      renews the lease, unless the process does so for several brokers
    ├─ LeaseKeeper     waits for the loss of the lease
    └─ Services.run    runs all services (escapement.broker.services)

Sessions (one for each connection) use the services, some of them through ``Admin``. The broker
itself does not know connections. If any task fails, the broker cancels all tasks, and ``run``
raises the error. A new broker then recovers from the durable state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

import trio

from escapement.broker.broker_stats import BrokerStats
from escapement.broker.cluster import Cluster
from escapement.broker.config import MOST_PARALLELISM, BrokerConfig
from escapement.broker.crash import one_error
from escapement.broker.delivery.consuming import Consuming
from escapement.broker.delivery.output_bound import OutputBound
from escapement.broker.directory import Directory, OneBundle
from escapement.broker.findings import Findings
from escapement.broker.inspection.forecast import Forecast, forecast
from escapement.broker.inspection.message_history import MessageHistory, message_history, published
from escapement.broker.inspection.peek import Peeked, peek
from escapement.broker.inspection.reading import Page, read_page
from escapement.broker.inspection.search import Sought
from escapement.broker.inspection.selecting import Selected, select
from escapement.broker.lease_keeper import LeaseKeeper
from escapement.broker.lookout import Lookout
from escapement.broker.membership import Membership
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.recovery.recovery import survey
from escapement.broker.registry.registry import Registry
from escapement.broker.runners import Runners
from escapement.broker.services import Services
from escapement.broker.shared_parts import SharedParts
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    Conflict,
    EscapementError,
    IndexDamaged,
    InvalidRequest,
    LeaseLost,
    MissingRight,
    NotFound,
    ShuttingDown,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
)
from escapement.event_log import EventLog
from escapement.failpoints import failpoint
from escapement.names import TopicName
from escapement.storage import lease as leases
from escapement.storage.catalog.views import create_views
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.connection_pool import ConnectionPool
from escapement.storage.index import KEY_MIN, DelayedIndex, IndexLimits, Key
from escapement.storage.lease import Identity, Lease
from escapement.storage.schema import migrate

__all__ = ["Broker", "BrokerConfig"]

T = TypeVar("T")

_log = EventLog(__name__)

# The most requests that have whole messages in memory to show them, beside one search. Each has a
# page of 8 MiB and one message at most.
_LOOKS: Final = 2
# The errors that tell what the memory of the broker has.
_FROM_MEMORY: Final = (NotFound, Conflict)


class Broker:
    """A broker on one log and one delayed index.

    Args:
      engine: the database of the log.
      index_directory: the directory of the delayed index.
      identity: the identity of this broker across restarts.
      clock: the source of time.
      runners: make blocking calls, usually in threads.
      config: the settings; None for the defaults.
      bundle_id: the bundle of topics that the broker owns. Brokers of other bundles may run on the
        same database. Only the broker of bundle 0 serves outboxes and message tables. Each broker
        learns the acknowledgements in transactions of its own topics.
      shared: what brokers of one process share; None: the broker shares nothing.

    Attributes:
      directory: the bundles and their owners, as sessions tell clients. Set it before ``run``.
      released: whether the broker has released its bundle, at the end of ``run``.
    """

    def __init__(
        self,
        engine: Engine,
        index_directory: Path,
        identity: Identity,
        clock: Clock,
        runners: Runners,
        config: BrokerConfig | None = None,
        bundle_id: int = 0,
        shared: SharedParts | None = None,
    ) -> None:
        shared = shared or SharedParts()
        self.identity = identity
        self.bundle_id = bundle_id
        self.directory: Directory = OneBundle(bundle_id, identity.name)
        self.config = config or BrokerConfig()
        self.cluster = Cluster(engine, runners.work, self.config.new_parallelism)
        if bundle_id:
            self.config = replace(self.config, tables=(), binary_logs=False)
        self.clock = clock
        self.findings = Findings(self.config.checks, clock, runners.checks)
        self.stopping = False
        self.released = False
        self.output = shared.output or OutputBound(self.config.limits.output_bytes)
        # A request that holds this makes an answer, which may be large, and then queues it without
        # an await. So each turn of the event loop makes only one such answer.
        self.answering = trio.Lock()
        # Searches take turns in the order of their arrival, for one page each. If some hundred made
        # progress together, the first would be answered as late as the last.
        self._searching = trio.Lock()
        self._looking = trio.Semaphore(_LOOKS)
        self.stopped = trio.Event()  # set when ``run`` is about to return or raise
        self._engine = engine
        self._index_directory = index_directory
        self._runners = runners
        self._limits = self.config.limits
        self._shared = shared
        self._membership = shared.membership or Membership(
            engine, identity, clock, runners.commits, self._limits.lease_ms
        )
        self._connections = shared.connections or ConnectionPool(engine)
        self._lookout = shared.lookout or Lookout(
            self._connections, clock, runners.work, self._limits
        )
        self._stop = trio.Event()
        self._damage: IndexDamaged | None = None  # found by a request
        self._damaged = trio.Event()
        self._clean = False  # whether the stop finished its work in time
        self._started = False  # whether the start is done and ``_close`` has not begun
        self._farewells: list[Callable[[], None]] = []
        self._endings: list[Callable[[], Awaitable[None]]] = []
        self._services: Services | None = None

    # ``run`` sets ``_keeper`` first, and ``_services`` when recovery has read the stored state.
    _keeper: LeaseKeeper

    @property
    def services(self) -> Services:
        """The services, once recovery has read the stored state."""
        assert self._services is not None, "the broker has not started"
        return self._services

    @property
    def index(self) -> DelayedIndex:
        return self.services.index

    @property
    def registry(self) -> Registry:
        return self.services.registry

    @property
    def publishing(self) -> Publishing:
        return self.services.publishing

    @property
    def consuming(self) -> Consuming:
        return self.services.consuming

    # -- start and stop --------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Recover, report "started", serve until :meth:`stop`, and stop cleanly.

        Raises:
          LeaseHeld: if another broker owns the database.
          LeaseLost: if another broker has taken the database over.
          IndexDamaged: if the index was damaged. It is discarded, and the next start rebuilds it.
          StorageError: if the database is unsuitable, or rejected a statement that must succeed.
        """
        run = self._runners.work
        if self._shared.membership is None:  # otherwise the process has done so
            await run(self._engine.check_fitness)
            await run(migrate, self._engine)
            await run(create_views, self._engine)
        lease = await run(self._take)
        what = f"bundle {self.bundle_id}" if self.directory.count > 1 else "the log"
        _log.info(
            "lease.taken", "the broker owns %s, epoch %d", what, lease.epoch, epoch=lease.epoch
        )
        self._keeper = LeaseKeeper(
            self._membership, lease, self._renewed, self._read_only, self._count_messages
        )
        try:
            with one_error():
                self._clean = await self._live(lease, task_status)
        except IndexDamaged:
            # Discard the index first. Whatever else fails now, the next start must not read it.
            with trio.CancelScope(shield=True):
                await run(DelayedIndex.discard, self._index_directory)
            raise
        except MissingRight:
            if self._services is None and self._shared.membership is not None:
                with trio.CancelScope(shield=True), suppress(EscapementError):
                    await run(self._membership.give_back, lease)
                    self.released = True
            raise
        except (LeaseLost, StorageUnavailable):
            raise
        except StorageError as error:
            # An overtaken broker may read a table that its successor has dropped.
            with trio.CancelScope(shield=True):
                lost = await run(self._loss_of, lease)
            if lost is None:
                raise
            raise lost from error
        finally:
            with trio.CancelScope(shield=True):
                await self._close()
            self.stopped.set()

    def _take(self) -> Lease:
        """Take the lease of the bundle. Blocking."""
        if self._shared.membership is not None:
            return self._membership.take(self.bundle_id)
        self._membership.register()
        try:
            return self._membership.take(self.bundle_id)
        except EscapementError:
            with suppress(EscapementError):  # if the database fails meanwhile, the row expires
                self._membership.leave()
            raise

    def _loss_of(self, lease: Lease) -> LeaseLost | None:
        """Return the error that the lease is lost, if another broker has taken it. Blocking."""
        try:
            with (
                closing(self._engine.connect()) as connection,
                leases.as_owner(self._engine, connection, lease),
            ):
                return None
        except LeaseLost as error:
            return error
        except EscapementError:
            return None  # the database does not answer

    def _release(self, doubtful_until_ms: int) -> None:
        """Release the lease of the bundle. Blocking."""
        self._keeper.release(doubtful_until_ms)
        if self._shared.membership is None:
            self._membership.leave()

    async def _live(self, lease: Lease, task_status: trio.TaskStatus[None]) -> bool:
        """Recover, serve and stop. Return whether the stop finished in time."""
        async with trio.open_nursery() as nursery:
            if self._shared.membership is None:
                nursery.start_soon(self._membership.run)
            if self._shared.lookout is None:
                nursery.start_soon(self._lookout.run)
            nursery.start_soon(self._keeper.run)
            nursery.start_soon(self._end_when_damaged)
            await self._recover(lease)
            await nursery.start(self.services.run)
            self._started = True
            task_status.started()
            await self._stop.wait()
            with trio.move_on_after(self._limits.stop_timeout_s) as timeout:
                await self._wind_down()
            nursery.cancel_scope.cancel()
        return not timeout.cancelled_caught

    async def _end_when_damaged(self) -> None:
        """Wait until a request finds that the index is damaged, and raise the error."""
        await self._damaged.wait()
        assert self._damage is not None, "the event is set with the error"
        raise self._damage

    async def _recover(self, lease: Lease) -> None:
        limits = IndexLimits(
            memory_bytes=self._limits.index_memory_bytes,
            cache_bytes=self._limits.index_cache_bytes,
        )
        ground = await self._runners.work(
            survey,
            self._engine,
            lease,
            self._index_directory,
            limits,
            self.config.new_parallelism,
            self.clock.now_ms(),
        )
        with closing(ground.connection):
            self._services = Services(
                ground,
                self._keeper,
                self._connections,
                self.clock,
                self._runners,
                self.config,
                self.output.frame_bytes,
                self.directory,
                self._shared.writer,
                self._lookout,
            )
            await self._services.recover(ground)

    def _renewed(self) -> None:
        if self._services is not None:
            self._services.wake_all()

    def _read_only(self, error: StorageReadOnly) -> None:
        if self._services is not None:
            self._services.pipeline.doubt(error)

    def _count_messages(self) -> int:
        """Return how many messages the broker has published and delivered."""
        return 0 if self._services is None else self._services.totals.handled

    def stop(self) -> None:
        """Refuse new work, finish the work in progress, write a checkpoint, and end."""
        self.stopping = True
        self._stop.set()

    def on_stop(self, farewell: Callable[[], None]) -> None:
        """Register a function to call when the broker stops and has queued the last receipts."""
        self._farewells.append(farewell)

    def on_end(self, ending: Callable[[], Awaitable[None]]) -> None:
        """Register a function that the broker awaits before it closes what sessions use.

        The broker awaits it whether it stops or fails. ``ending`` must return only when no session
        uses the broker and no new session can begin.
        """
        self._endings.append(ending)

    @property
    def is_serving(self) -> bool:
        """Whether new sessions may begin: the broker has started and is not about to end."""
        return self._started and not self.stopping

    def check_open(self) -> None:
        """Raise ``ShuttingDown`` if the broker is stopping and accepts no new work."""
        if self.stopping:
            raise ShuttingDown("the broker is stopping; connect again")

    async def _wind_down(self) -> None:
        now_ms = self.clock.now_ms()
        for topic in self.registry.active.values():
            for subscription in topic.subscriptions():
                subscription.stop(now_ms)
        self.services.scheduler.stop()
        self.services.inbox_relay.stop()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.services.relays.stop)
            nursery.start_soon(self.services.tables.stop)
            nursery.start_soon(self.services.bulk_changes.halt)
        await self.services.pipeline.drain()
        for farewell in self._farewells:
            farewell()
        await self.checkpoint()

    async def _close(self) -> None:
        self._started = False
        try:
            if self._clean:
                failpoint("hand_over")
                await self._runners.commits(
                    self._release, self.services.activation.doubtful_until_ms
                )
                self.released = True
        except EscapementError as error:
            _log.warning("lease.not_released", "cannot release the lease now: %s", error)
        for ending in self._endings:
            await ending()
        self._keeper.close()
        if self._shared.membership is None:
            self._membership.close()
        if self._services is not None:
            self._services.close()
        if self._shared.connections is None:
            self._connections.close()

    # -- requests of sessions and operators ------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the lease of the bundle."""
        return self._keeper.lease.epoch

    def holds_lease(self) -> bool:
        """Return whether the lease is valid, so that no other broker can deliver messages yet."""
        return self._keeper.held

    def check_lease(self) -> None:
        """Raise ``LeaseLost`` if the lease has expired, so that an answer may be out of date."""
        self._keeper.check()

    def checked(self, error: EscapementError) -> EscapementError:
        """Return the error to answer with in place of the one that a request raised.

        That is ``LeaseLost`` if the error may be out of date. If the index is damaged, the broker
        ends, and the client asks again when the index is being rebuilt.
        """
        if isinstance(error, IndexDamaged):
            self._damage = error
            self._damaged.set()
            return ShuttingDown("the delayed index is damaged and is rebuilt now; connect again")
        if isinstance(error, _FROM_MEMORY):
            try:
                self.check_lease()
            except LeaseLost as lost:
                return lost
        return error

    @property
    def lease_left_ms(self) -> int:
        """How long the lease is still valid; 0 if it has expired."""
        return self._keeper.left_ms

    @property
    def commit_age_ms(self) -> int:
        """The time since the last commit: of a group, or of a renewal of the lease."""
        last_ms = max(self._keeper.renewed_at_ms, self.services.committed_at_ms or 0)
        return max(self.clock.lease_ms() - last_ms, 0)

    async def checkpoint(self) -> None:
        """Write a checkpoint now."""
        await self.services.checkpointer.checkpoint()

    async def refresh_catalog(self) -> None:
        """Read the namespaces, tokens and grants again, which the brokers of all bundles share.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        await self.registry.namespaces.refresh(self.read_database)
        self.services.deletion.refresh()
        await self.services.access.refresh(self.read_database)

    async def read_database(self, read: Callable[[Connection], T]) -> T:
        """Return ``read(connection)``, beside the commit lanes, which may wait for a lock."""
        return await self._runners.work(self._connections.snapshot, read)

    def next_wake_ms(self) -> int | None:
        """Return when a topic or schedule next has work, for test clocks that jump there."""
        return self.services.timekeeper.next_wake_ms()

    async def set_table_parallelism(self, count: int) -> None:
        """Begin a new generation of the log, a set of ``count`` tables, at once.

        Raises:
          InvalidRequest: if ``count`` is too large.
          StorageUnavailable: if the database cannot be reached; nothing has changed.
        """
        if count > MOST_PARALLELISM:
            raise InvalidRequest(
                f"table_parallelism cannot be more than {MOST_PARALLELISM}; {count} was given"
            )
        await self.services.housekeeper.set_parallelism(count)

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic and everything that belongs to it. Raises ``NotFound``."""
        await self.services.deletion.topic(name)

    async def read(self, topic: Topic, start: int, stop: int | None, max_messages: int) -> Page:
        """Return a page of a topic's messages in a range of offsets; see ``read_page``."""
        return await read_page(topic, self.services.reader, start, stop, max_messages)

    async def forecast(
        self, topic: Topic, *, by_ms: int, within_ms: int, origin_ms: int
    ) -> Forecast:
        """Count the messages of a topic that fall due in each time span; see ``forecast``."""
        await self.services.backfill.whole_index()
        return await forecast(
            topic,
            self.index,
            self._runners.looks,
            self.clock.now_ms(),
            by_ms=by_ms,
            within_ms=within_ms,
            origin_ms=origin_ms,
        )

    def look(self, by_content: bool = False) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of a request that shows messages.

        The request keeps its turn while it has whole messages in memory: from before it reads them
        until its answer, which has less of them, is made.

        Args:
          by_content: whether the request searches by the contents of messages.
        """
        return self._searching if by_content else self._looking

    async def peek(self, topic: Topic, sought: Sought, count: int, after: Key = KEY_MIN) -> Peeked:
        """Return pending messages of a topic, next due first; see ``peek``."""
        await self.services.backfill.whole_index()
        looks, now_ms = self._runners.looks, self.clock.now_ms()
        return await peek(topic, self.index, looks, now_ms, sought, count, after)

    async def select(self, topic: Topic, sought: Sought, after: Key) -> Selected:
        """Return the offsets of pending messages that match ``sought``; see ``select``."""
        await self.services.backfill.whole_index()
        async with self._searching:
            return await select(
                topic, self.index, self._runners.looks, self.clock.now_ms(), sought, after
            )

    async def due_of(self, topic: Topic, offset: int) -> int:
        """Return the current due time of a message. Raises ``NotFound``."""
        found = await published(topic, self.services.reader, offset)
        return int(topic.amendments.moves.current(found.offsets, found.due_ms)[0])

    async def message_history(self, topic: Topic, offset: int) -> MessageHistory:
        """Return the state of one message in each subscription. Raises ``NotFound``."""
        return await message_history(topic, self.services.reader, self.clock.now_ms(), offset)

    def stats(self) -> BrokerStats:
        """Return figures about the whole broker, as plain values."""
        services = self.services
        totals, log, size = services.totals, services.log, services.log_size.last
        commits = totals.commit_us
        return {
            "name": self.identity.name,
            "id": self.identity.owner_id,
            "version": version("escapement"),
            "started_at_ms": services.started_at_ms,
            "log": self._engine.location,
            "database": services.pipeline.reported_state.name.lower(),
            "lease_held": self._keeper.held,
            "topics": len(services.registry.topics),
            "active_topics": len(services.registry.active),
            "index_memory_bytes": services.index.memory_bytes,
            "index_disk_bytes": services.index.disk_bytes,
            "index_segments": services.index.segment_count,
            "published": totals.published,
            "delivered": totals.delivered,
            "commits": commits.size,
            "commit_p50_us": commits.quantile(0.5),
            "commit_p99_us": commits.quantile(0.99),
            "log_bytes": sum(one.size_bytes for one in (*log.generations, *log.going)),
            "log_rows": None if size is None else size.rows,
            "log_disk_bytes": None if size is None else size.disk_bytes,
            "log_generation": log.current.id,
            "table_parallelism": log.current.parallelism,
            "waiting_bytes": services.pipeline.waiting_bytes,
            "waiting_acks": services.pipeline.waiting_acks,
            "inbox_moved": services.inbox_relay.moved,
            "outbox_moved": services.relays.outboxes.moved,
            "outbox_refused": services.relays.outboxes.refused,
            "outbox_acks_learned": services.relays.learned,
            "outboxes_waiting": services.relays.problems,
            "tables_waiting": services.tables.problems,
            "dead_letters_waiting": [
                f"{whose}: {why}" for whose, why in services.dead_letter_writer.problems.items()
            ],
            "inbox_blocked": [f"{to}: {why}" for to, why in services.inbox_relay.blocked.items()],
        }
