"""The broker: what it is made of, how it starts, what a commit changes, how it stops.

One task tree::

    Broker.run
    ├─ LeaseKeeper     renews the lease
    ├─ CommitPipeline  lanes: publishes, acks, attempts ──► MySQL ──► Broker._committed
    ├─ Timekeeper      sleeps until the next topic has something to do
    ├─ Pump            windows, backlogs, frames
    ├─ Checkpointer    index to disk, state to MySQL, journal trimmed
    ├─ Compactor       few segments, free of what is done
    ├─ Filler          the past, for subscriptions that want it
    └─ Housekeeper     new log generations, what deletes left behind, idle producers

Sessions (one for each connection) use ``publishing``, ``consuming`` and, through
``Admin``, ``registry``; nothing here knows connections. If any task fails, all are
cancelled and the error leaves ``run``: the broker has crashed, and a new one recovers
from what is durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import trio

from escapement.broker.backoff import DEFAULT_ACK_WAIT_MS
from escapement.broker.checkpointer import Checkpointer, Progress
from escapement.broker.compactor import Compactor
from escapement.broker.consuming import Consuming
from escapement.broker.crash import one_error
from escapement.broker.filler import Filler
from escapement.broker.handle import ProducerHandle
from escapement.broker.housekeeper import Housekeeper
from escapement.broker.leasekeeper import LeaseKeeper
from escapement.broker.limits import DEFAULT_LIMITS, BrokerLimits
from escapement.broker.logreader import LogReader
from escapement.broker.peek import Peeked, peek
from escapement.broker.publication import Publication
from escapement.broker.publishing import Publishing
from escapement.broker.pump import Pump
from escapement.broker.recovery import Ground, survey
from escapement.broker.registry import Registry
from escapement.broker.replay import Replay
from escapement.broker.revival import Revival
from escapement.broker.timekeeper import Timekeeper
from escapement.broker.topic import Topic
from escapement.clock import Clock
from escapement.errors import EscapementError, NotFound, ShuttingDown
from escapement.message import MessageBatch
from escapement.names import TopicName
from escapement.storage import lease as leases
from escapement.storage.blocking import Run
from escapement.storage.catalog import Namespace
from escapement.storage.checkpoint import ProducerRow
from escapement.storage.commit import CommitPipeline
from escapement.storage.engine.base import Engine
from escapement.storage.group import Group, TopicGroup
from escapement.storage.index import DelayedIndex, IndexLimits
from escapement.storage.lane import State
from escapement.storage.lease import Identity
from escapement.storage.schema import migrate

_log = logging.getLogger(__name__)

DEFAULT_PARALLELISM: Final = 4


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What an operator decides."""

    limits: BrokerLimits = DEFAULT_LIMITS
    auto_create_topics: bool = True
    table_parallelism: int = DEFAULT_PARALLELISM
    max_commits_per_second: float | None = None
    ack_wait_ms: int = DEFAULT_ACK_WAIT_MS
    seed: int | None = None  # of the jitter; for tests that replay


class Broker:
    """See the module's docstring.

    Args:
      engine: the database of the log.
      index_directory: where the delayed index lives.
      identity: who this broker is, across restarts.
      clock, run: what time it is, and where blocking calls run.
    """

    def __init__(
        self,
        engine: Engine,
        index_directory: Path,
        identity: Identity,
        clock: Clock,
        run: Run,
        config: BrokerConfig | None = None,
    ) -> None:
        self.identity = identity
        self.config = config or BrokerConfig()
        self.clock = clock
        self.stopping = False
        self.stopped = trio.Event()  # everything is durable; connections may be closed
        self._engine = engine
        self._index_directory = index_directory
        self._run = run
        self._limits = self.config.limits
        self._stop = trio.Event()
        self._clean = False  # we have stopped in good order
        self._farewells: list[Callable[[], None]] = []
        self._open: list[Callable[[], None]] = []  # what is to be closed at the end

    # The parts; each is made by ``_assemble``, when there is ground to stand on.
    index: DelayedIndex
    registry: Registry
    publishing: Publishing
    consuming: Consuming
    _pipeline: CommitPipeline
    _keeper: LeaseKeeper
    _timekeeper: Timekeeper
    _pump: Pump
    _checkpointer: Checkpointer
    _compactor: Compactor
    _filler: Filler
    _housekeeper: Housekeeper
    _revival: Revival
    _progress: Progress

    # -- the broker's life -----------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Recover, report "started", serve until :meth:`stop`, and stop in good order.

        Raises:
          LeaseHeld: another broker owns the database.
          LeaseLost: another broker has taken over.
          IndexDamaged: the index turned out damaged; it is rebuilt by the next start.
          StorageError: the database is unfit, or refused what it must not refuse.
        """
        await self._run(self._engine.check_fitness)
        await self._run(migrate, self._engine)
        lease = await self._run(
            leases.acquire, self._engine, self.identity, self._limits.lease_ms, self.clock
        )
        self._keeper = LeaseKeeper(self._engine, lease, self.clock, self._run, self._wake_all)
        try:
            with one_error():
                self._clean = await self._live(lease, task_status)
        finally:
            with trio.CancelScope(shield=True):
                await self._close()
            self.stopped.set()

    async def _live(self, lease: leases.Lease, task_status: trio.TaskStatus[None]) -> bool:
        """Recover, serve, stop; returns whether everything was finished in time."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keeper.run)
            ground = await self._survey(lease)
            self._assemble(ground, lease)
            await Replay(
                ground,
                self.registry,
                self._revival,
                self._progress,
                self._checkpointer,
                self._run,
            ).run()
            await nursery.start(self._pipeline.run)
            for part in (
                self._timekeeper,
                self._pump,
                self._checkpointer,
                self._compactor,
                self._filler,
                self._housekeeper,
            ):
                nursery.start_soon(part.run)
            for topic in self.registry.active.values():
                self._reschedule(topic)
            task_status.started()
            await self._stop.wait()
            with trio.move_on_after(self._limits.stop_timeout_s) as patience:
                await self._wind_down()
            nursery.cancel_scope.cancel()
        return not patience.cancelled_caught

    def stop(self) -> None:
        """Take no new work, finish what is under way, write a checkpoint, end."""
        self.stopping = True
        self._stop.set()

    def on_stop(self, farewell: Callable[[], None]) -> None:
        """Call ``farewell`` when the broker stops, after the last receipts were queued."""
        self._farewells.append(farewell)

    def check_open(self) -> None:
        """Raise ``ShuttingDown`` if new work is not taken any more."""
        if self.stopping:
            raise ShuttingDown("the broker is stopping; connect again")

    def holds_lease(self) -> bool:
        """Whether nobody else can be delivering our messages yet."""
        return self._keeper.held

    async def checkpoint(self) -> None:
        """Write a checkpoint now."""
        await self._checkpointer.checkpoint()

    async def _wind_down(self) -> None:
        now_ms = self.clock.now_ms()
        for topic in self.registry.active.values():
            for subscription in topic.subscriptions():
                subscription.stop(now_ms)
        await self._pipeline.drain()
        for farewell in self._farewells:
            farewell()
        await self._checkpointer.checkpoint()

    async def _close(self) -> None:
        try:
            if self._clean:
                await self._run(self._keeper.release, self._revival.doubtful_until_ms)
        except EscapementError as error:
            _log.warning("the lease is not released and will run out by itself: %s", error)
        for close in self._open:
            close()

    # -- assembling ------------------------------------------------------------

    async def _survey(self, lease: leases.Lease) -> Ground:
        limits = IndexLimits(
            memory_bytes=self._limits.index_memory_bytes,
            cache_bytes=self._limits.index_cache_bytes,
        )
        return await self._run(
            survey,
            self._engine,
            lease,
            self._index_directory,
            limits,
            self.config.table_parallelism,
            self.clock.now_ms(),
        )

    def _assemble(self, ground: Ground, lease: leases.Lease) -> None:
        """Make the parts, from the log upward; nothing runs yet."""
        config, limits, clock, run = self.config, self._limits, self.clock, self._run
        self.index = ground.index
        self._progress = Progress(dict(ground.index_positions))
        self._pipeline = CommitPipeline(
            self._engine,
            ground.log,
            lease,
            clock,
            run,
            self._committed,
            journal_ends=ground.state.journal_ends,
            on_state=self._pipeline_changed,
            max_lanes=limits.commit_lanes,
            max_waiting_bytes=limits.commit_waiting_bytes,
            max_commits_per_second=config.max_commits_per_second,
        )
        self.registry = Registry(
            clock,
            self._pipeline.transact,
            lambda *record: self._revival.topic(*record),
            config.auto_create_topics,
        )
        self._checkpointer = Checkpointer(
            self._engine,
            lease,
            ground.log,
            ground.log_identity,
            ground.index,
            self.registry,
            self._progress,
            clock,
            run,
            limits.checkpoint_interval_s,
        )
        self._compactor = Compactor(ground.index, self.registry, run)
        reader = LogReader(self._engine, ground.log, run, ground.connection)
        self._open = [reader.close, self._checkpointer.close]
        self._timekeeper = Timekeeper(clock, self._wake_topic, self._step_back, limits.max_sleep_s)
        self._pump = Pump(
            ground.index, clock, limits, run, reader, self._may_dispatch, self._reschedule
        )
        self._filler = Filler(ground.index, clock, reader, self._checkpointer.room, self._filled)
        self._revival = Revival(
            self._pipeline,
            ground.index,
            self._filler,
            clock,
            limits,
            np.random.default_rng(config.seed),
            chunks=ground.state.chunks,
            retries=ground.state.retries,
            end_offsets=ground.next_offsets(),
            # What of it an earlier owner delivered, nobody knows for sure.
            doubtful_until_ms=lease.doubtful_until_ms if lease.was_clean else clock.now_ms(),
            on_change=self._reschedule,
        )
        self._housekeeper = Housekeeper(
            self._engine,
            lease,
            ground.log,
            self.registry,
            self._pipeline.transact,
            clock,
            run,
            config.table_parallelism,
        )
        self.publishing = Publishing(
            self.registry, self._pipeline, self._checkpointer, clock, limits
        )
        self.consuming = Consuming(
            self.registry,
            self._revival,
            self._pipeline,
            self._pump,
            clock,
            limits,
            config.ack_wait_ms,
            self._reschedule,
        )

    # -- what a commit changes -------------------------------------------------

    def _committed(self, group: Group) -> None:
        """A group is durable: one synchronous step into index, wheels, cursors, receipts."""
        now_ms = self.clock.now_ms()
        self._progress.positions[group.lane] = group.position
        for part in group.topics:
            self._appended(part, now_ms)
        for acks in group.acks:
            subscription = self._revival.subscriptions.get(acks.subscription_id)
            if subscription is not None:
                subscription.acks_committed(acks.offsets)
                self._progress.touched.add(acks.topic_id)
            if acks.context is not None:
                acks.context()
        for attempts in group.attempts:
            self._progress.touched.add(attempts.topic_id)
        waiting, most = self._pipeline.waiting_acks, self._limits.unwritten_acks
        if waiting < most <= waiting + group.ack_count:
            self._wake_all()  # so many were waiting that nothing was dispatched
        if group.topics:
            self.publishing.settled()
            if self.index.needs_checkpoint:
                self._checkpointer.want()

    def _appended(self, part: TopicGroup, now_ms: int) -> None:
        topic = self.registry.active.get(part.topic_id)  # None: deleted while it committed
        publications: list[Publication] = [append.context for append in part.appends]
        if topic is not None:
            batch = MessageBatch.concat([publication.batch for publication in publications])
            topic.accept(part.base_offset, part.due_ms, batch, now_ms)
            self._progress.touched.add(topic.id)
        for publication, base_offset in zip(publications, part.base_offsets, strict=True):
            publication.committed(base_offset)
            producer = publication.producer
            assert producer is not None
            self._progress.producers[producer.id] = ProducerRow(
                producer.id, producer.last_sequence, producer.last_offset, now_ms
            )
        if topic is not None:
            for subscription in topic.subscriptions():
                if subscription.consumers:
                    self._pump.wake_subscription(topic, subscription)
            self._reschedule(topic)

    # -- time ------------------------------------------------------------------

    def _wake_topic(self, topic_id: int, now_ms: int) -> None:
        topic = self.registry.active.get(topic_id)
        if topic is not None:
            topic.advance(now_ms)
            self._pump.wake(topic)
            self._reschedule(topic)

    def _reschedule(self, topic: Topic) -> None:
        self._timekeeper.schedule(topic.id, topic.next_wake_ms(self.clock.now_ms()))

    def _step_back(self, now_ms: int) -> None:
        _log.warning("the wall clock went back; the frontier follows it")
        for topic in self.registry.active.values():
            topic.rewind(now_ms)
            self._pump.wake(topic)
            self._reschedule(topic)

    def _wake_all(self) -> None:
        for topic in self.registry.active.values():
            self._pump.wake(topic)

    def _filled(self, topic: Topic) -> None:
        self._progress.touched.add(topic.id)
        self._pump.wake(topic)

    def next_wake_ms(self) -> int | None:
        """When something falls due next; for clocks that jump there."""
        return self._timekeeper.next_wake_ms()

    # -- the database ----------------------------------------------------------

    def _may_dispatch(self) -> bool:
        """Whether messages may leave: not once a successor may be delivering them, not
        while the database takes no writes, and only a bounded number while it is away.
        """
        if self._pipeline.state is State.READ_ONLY or not self._keeper.held:
            return False
        return self._pipeline.waiting_acks < self._limits.unwritten_acks

    def _pipeline_changed(self, state: State) -> None:
        if self.stopping:
            return
        if state is State.UP:
            _log.info("the database takes writes")
            self._wake_all()
        else:
            _log.warning("the database is %s", state.name.lower().replace("_", "-"))

    # -- administration --------------------------------------------------------

    def namespace_changed(self, namespace: Namespace) -> None:
        """A namespace has new settings: its topics wake at other times."""
        for topic in self.registry.active.values():
            if topic.namespace.id == namespace.id:
                self.topic_changed(topic)

    def topic_changed(self, topic: Topic) -> None:
        """A topic or a subscription of it has a new policy: there may be work, or other times."""
        self._pump.wake(topic)
        self._reschedule(topic)

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic and all that belongs to it. Raises ``NotFound``."""
        topic = self.registry.topic(name)
        gone = NotFound(f"the topic {name.full} was deleted")
        for producer in topic.producers.values():
            holder, producer.holder = producer.holder, None
            if isinstance(holder, ProducerHandle):
                holder.fenced(gone)
        topic.deleting = True
        try:
            topic_id = await self.registry.delete_topic(name)
        except BaseException:
            topic.deleting = False
            raise
        self._pipeline.close_topic(topic_id)
        for subscription in list(topic.subscriptions()):
            self.consuming.dismiss(topic, subscription, gone)
        self._timekeeper.schedule(topic_id, None)
        self.index.drop_topic(topic_id)

    async def peek(self, topic: Topic, count: int) -> Peeked:
        """What is pending on a topic, next due first."""
        return await peek(topic, self.index, self._run, self.clock.now_ms(), count)

    def stats(self) -> dict[str, Any]:
        """Figures about the whole broker; plain values."""
        return {
            "name": self.identity.name,
            "id": self.identity.owner_id,
            "log": self._engine.location,
            "database": self._pipeline.state.name.lower(),
            "lease_held": self._keeper.held,
            "topics": len(self.registry.topics),
            "active_topics": len(self.registry.active),
            "index_memory_bytes": self.index.memory_bytes,
            "index_disk_bytes": self.index.disk_bytes,
            "index_segments": self.index.segment_count,
            "waiting_bytes": self._pipeline.waiting_bytes,
            "waiting_acks": self._pipeline.waiting_acks,
        }
