"""The services of a broker, created from the log upward, and the callables that join them.

A service knows the services below it. Calls in the other direction (a commit that changes topics, a
topic that needs a wake-up) go through callables that this module passes to the lower service. No
task runs before ``run``. docs/architecture/code-map.md says what each task does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np
import trio

from escapement.broker.access.access import Access
from escapement.broker.access.audit import Audit
from escapement.broker.access.catching_up import CatchingUp
from escapement.broker.binary_logs import BinaryLogs
from escapement.broker.bulk.bulk_changes import BulkChanges
from escapement.broker.bulk.selection import Selector
from escapement.broker.bulk.slices import Slices
from escapement.broker.config import BrokerConfig
from escapement.broker.deletion import Deletion
from escapement.broker.delivery.consuming import Consuming
from escapement.broker.delivery.pump import Pump
from escapement.broker.delivery.recorder import Recorder
from escapement.broker.delivery.timekeeper import Timekeeper
from escapement.broker.directory import Directory
from escapement.broker.inbox.amender import Amender
from escapement.broker.inbox.dead_letter_writer import DeadLetterWriter
from escapement.broker.inbox.dead_letters import DeadLetters
from escapement.broker.inbox.group_completion import GroupCompleter
from escapement.broker.inbox.inbox_relay import InboxRelay
from escapement.broker.inbox.original_topics import OriginalTopics
from escapement.broker.inbox.scheduler import Scheduler
from escapement.broker.lease_keeper import LeaseKeeper
from escapement.broker.log.backfill import Backfill
from escapement.broker.log.log_reader import LogReader
from escapement.broker.lookout import Lookout
from escapement.broker.metering.lateness_history import LatenessHistory
from escapement.broker.metering.totals import Totals
from escapement.broker.outbox.named_topics import NamedTopics
from escapement.broker.outbox.relays import Relays
from escapement.broker.publishing.amending import Amending
from escapement.broker.publishing.publishing import Publishing
from escapement.broker.publishing.replacing import Replacing
from escapement.broker.publishing.rescheduling import Rescheduling
from escapement.broker.push_targets import PushTargets
from escapement.broker.recovery.activation import Activation
from escapement.broker.recovery.passivator import Passivator
from escapement.broker.recovery.recovery import Ground
from escapement.broker.recovery.replay import Replay
from escapement.broker.registry.bundle import Bundle
from escapement.broker.registry.changes import Changes
from escapement.broker.registry.registry import Registry
from escapement.broker.registry.topic_batches import TopicBatches
from escapement.broker.runners import Runners
from escapement.broker.settlement import Settlement
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.tables.database import Delivery
from escapement.broker.tables.table_index import TableIndex
from escapement.broker.tables.tables import Tables
from escapement.broker.topic.backlogs import Backlogs
from escapement.broker.topic.passive_topics import PassiveTopics
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.backfiller import Backfiller
from escapement.broker.upkeep.census import CensusTaker
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.broker.upkeep.compactor import Compactor
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.broker.upkeep.due_counts import DueCounter
from escapement.broker.upkeep.filler import Filler
from escapement.broker.upkeep.forgetter import Forgetter
from escapement.broker.upkeep.housekeeper import Housekeeper
from escapement.broker.upkeep.log_size_watch import LogSizeWatch
from escapement.broker.upkeep.namespace_quota import NamespaceQuotas
from escapement.broker.upkeep.progress import Progress
from escapement.broker.upkeep.unwritten import Unwritten
from escapement.clock import Clock
from escapement.event_log import EventLog
from escapement.storage.blocking import Run
from escapement.storage.bundles import CATALOG, shared_numbers
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.group import Group
from escapement.storage.commit.lane import State
from escapement.storage.commit.shared_writer import SharedWriter
from escapement.storage.encoding.attempts import Parts
from escapement.storage.encoding.replace_keys import REPLACE_KEY_BYTES
from escapement.storage.engine.connection_pool import ConnectionPool

_log = EventLog(__name__)

# The id under which the timekeeper wakes the scheduler. Topic ids are positive.
_SCHEDULES: Final = 0
# The most message tables of a database that are served at the same time. Their claims share a
# transaction.
_TABLE_WORKERS: Final = 32


class Services:
    """The services of one broker.

    Args:
      ground: the stored state that the broker starts from.
      keeper: the keeper of the lease that all services work under.
      shared_writer: writes group commits together with those of other bundles; None: there is none.
      frame_bytes: takes a number of frames that are queued now, and returns how large each of them
        may be.
    """

    def __init__(
        self,
        ground: Ground,
        keeper: LeaseKeeper,
        connections: ConnectionPool,
        clock: Clock,
        runners: Runners,
        config: BrokerConfig,
        frame_bytes: Callable[[int], int],
        directory: Directory,
        shared_writer: SharedWriter | None,
        lookout: Lookout,
    ) -> None:
        self._lookout = lookout
        self.index = ground.index
        self.log = ground.log
        self.log_identity = bytes.fromhex(ground.log_identity)
        self._keeper = keeper
        self._clock = clock
        self._runners = runners
        self._limits = config.limits
        self._frame_bytes = frame_bytes
        self._directory = directory
        self.totals = Totals(lateness_history=LatenessHistory(config.limits.lateness_cells))
        self.started_at_ms = clock.now_ms()
        # When the last group commit became durable, by the lease clock; None: none yet.
        self.committed_at_ms: int | None = None
        self._progress = Progress(dict(ground.index_positions), dict(ground.state.journal_ends))
        self.backfill = Backfill(is_running=ground.rebuild)
        if ground.rebuild:
            self._progress.claimed = dict(ground.index_positions)
        state = ground.state
        self.passive_topics = PassiveTopics(
            chunks=state.chunks,
            moves=state.moves,
            attempts=state.attempts,
            keys=state.keys,
            replace_keys=state.replace_keys,
            members=state.members,
            completions=state.completions,
        )
        self._keep(ground, connections, config, shared_writer)
        self._move(ground, connections, config)
        self._serve(ground, config)
        self._write(ground, connections, config)
        self.deletion = Deletion(
            self.registry,
            self.scheduler,
            self.consuming,
            self.pipeline,
            self.timekeeper,
            self.index,
            ground.state.deleting_namespaces,
        )
        self._settlement = Settlement(
            self.registry,
            self.activation.subscriptions,
            self.index,
            self.publishing,
            self.checkpointer,
            self._progress,
            clock,
            self._keeper.lease.epoch,
            self.totals,
            self._appended,
            self.group_completer.done,
            self.group_completer.look,
        )

    def _keep(
        self,
        ground: Ground,
        connections: ConnectionPool,
        config: BrokerConfig,
        shared_writer: SharedWriter | None,
    ) -> None:
        """Create the services that store state, in the database and on disk."""
        clock, run, engine = self._clock, self._runners.work, connections.engine
        lease, limits = self._keeper.lease, config.limits
        self.pipeline = CommitPipeline(
            engine,
            ground.log,
            lease,
            clock,
            self._runners.commits,
            self._committed,
            journal_ends=ground.state.journal_ends,
            shared=shared_writer,
            on_state=self._database_changed,
            on_took=self._took,
            max_lanes=limits.commit_lanes,
            max_waiting_bytes=limits.commit_waiting_bytes,
            max_waiting_acks=limits.unwritten_acks,
            max_ack_items=limits.unwritten_ack_items,
            max_commits_per_second=config.max_commits_per_second,
        )
        self.registry = Registry(
            clock,
            self.pipeline.transact,
            lambda *record: self.activation.topic(*record),
            self._activated,
            self._look_at,
            config.auto_create_topics,
            lambda: ground.index.forgotten_until_ms,
            self._keeper.lease.epoch,
            Bundle(lease.bundle_id, ground.state.bundle_count, engine.dialect, self._directory),
        )
        self.access = Access(
            Changes(self.pipeline.transact),
            clock,
            ground.state.tokens,
            ground.state.grants,
            lease.bundle_id,
        )
        self.audit = Audit(
            Changes(self.pipeline.transact), clock, lease.bundle_id, lease.identity.name
        )
        if lease.bundle_id:
            version = partial(run, _catalog_version, connections)
            refresh = partial(self.access.refresh, partial(run, connections.snapshot))
            self.access.catch_up = CatchingUp(version, refresh).catch_up
        else:
            self.access.catch_up = self._check_lease
        self.compactor = Compactor(
            ground.index, self.registry, self.passive_topics, self._progress, clock, run
        )
        unwritten = Unwritten(
            ground.log,
            self.registry,
            self._progress,
            clock,
            {id: Parts.of(stored) for id, stored in ground.state.attempts.items()},
            {id: Parts.of(stored) for id, stored in ground.state.keys.items()},
            {
                id: Parts.of(stored, REPLACE_KEY_BYTES)
                for id, stored in ground.state.replace_keys.items()
            },
        )
        self.checkpointer = Checkpointer(
            connections,
            lease,
            ground.log_identity,
            ground.state.mark,
            ground.index,
            self.registry,
            self._progress,
            unwritten,
            clock,
            run,
            limits.checkpoint_interval_s,
            self.compactor.make_room,
        )
        self.housekeeper = Housekeeper(
            connections,
            lease,
            ground.log,
            self.registry,
            self.pipeline.transact,
            clock,
            run,
            config.table_parallelism or ground.log.current.parallelism,
            lambda now_ms: self.forgetter.wants_next(now_ms),
            config.audit_retention_ms,
        )
        self.log_size = LogSizeWatch(engine, clock, run)

    def _move(self, ground: Ground, connections: ConnectionPool, config: BrokerConfig) -> None:
        """Create the services that read messages and deliver them to consumers."""
        clock, run, engine = self._clock, self._runners.work, connections.engine
        lease, limits = self._keeper.lease, config.limits
        self.reader = LogReader(connections, ground.log, run)
        self.timekeeper = Timekeeper(
            clock, self._wake, self._step_back, self._lookout.wall_clock, limits.max_sleep_s
        )
        self._drop_oldest = DropOldest(ground.index, clock, run, self.reader)
        self.recorder = Recorder(clock)
        self.pump = Pump(
            ground.index,
            clock,
            limits,
            self._frame_bytes,
            run,
            self.reader,
            self._drop_oldest,
            self._may_dispatch,
            self._may_dispatch,
            self.recorder.sent,
            self.reschedule,
            self.hasten,
        )
        self._namespace_quotas = NamespaceQuotas(
            ground.index,
            self.registry.active,
            self._drop_oldest,
            clock,
            self.pump.wake_subscription,
            self.reschedule,
        )
        self._backlogs = Backlogs(
            ground.index,
            self.registry.active,
            self.pump.wake_subscription,
            self._namespace_quotas.want,
            self._drop_oldest.weigh,
            clock,
        )
        self.forgetter = Forgetter(
            engine,
            lease,
            ground.log,
            ground.index,
            self.registry,
            self.pipeline,
            self.checkpointer,
            self.reader,
            clock,
            run,
            limits.sparse_generation_bytes,
            self.backfill,
        )
        self._backfiller = Backfiller(
            self.backfill,
            engine,
            ground.log,
            lease.epoch,
            ground.index,
            self.registry,
            self._progress,
            clock,
            run,
            self.checkpointer.room,
            self.checkpointer.want,
            self._filled,
            limits.backfill_step_bytes,
        )
        self._filler = Filler(
            ground.index, clock, self.reader, self.checkpointer.room, self._filled
        )
        self.activation = Activation(
            self.pipeline,
            ground.index,
            self._filler,
            self.passive_topics,
            clock,
            limits,
            np.random.default_rng(config.seed),
            end_offsets=ground.tail.next_offsets(),
            doubtful_until_ms=lease.delivered_until_ms(clock.now_ms()),
            doubtful_below_id=lease.doubtful_below_id,
            on_change=self._subscribed,
            on_dead=self._dead,
            totals=self.totals,
            backfill=self.backfill,
        )

    def _serve(self, ground: Ground, config: BrokerConfig) -> None:
        """Create the services for client requests: publishers first, then consumers."""
        clock = self._clock
        self.tables = Tables(
            config.tables,
            ground.log_identity,
            self._keeper.lease.epoch,
            Delivery(
                self._table_pump,
                self._look_at,
                lambda topic_id: self.timekeeper.schedule(topic_id, None),
                lambda: self._keeper.held,
                self.totals,
            ),
            config.limits,
            np.random.default_rng(config.seed),
            clock,
            self._runners.tables,
        )
        self.topic_batches = TopicBatches(self.registry, Changes(self.pipeline.transact), clock)
        replacing = Replacing(self.registry, self.pump, self.reader, clock, self._appended)
        self.publishing = Publishing(
            self.registry,
            self.pipeline,
            self._backlogs,
            self.checkpointer,
            clock,
            config.limits,
            replacing,
        )
        self.amending = Amending(self.registry, self.pipeline, self.pump, self.reader)
        self.rescheduling = Rescheduling(
            self.registry,
            self.pipeline,
            self.publishing,
            self.reader,
            clock,
            self._appended,
        )
        self.consuming = Consuming(
            self.registry,
            self.activation,
            self.tables.to_consume,
            self._check_acks,
            self._wake_subscription,
            self.reader,
            clock,
            config.ack_wait_ms,
            self.hasten,
            lambda topic: self.group_completer.look(topic),
        )

    def _write(self, ground: Ground, connections: ConnectionPool, config: BrokerConfig) -> None:
        """Create the services that write inbox entries, and the inbox relay."""
        clock, run, limits = self._clock, self._runners.work, config.limits
        engine = connections.engine
        self.amender = Amender(
            self.registry,
            self.pipeline,
            self.index,
            self.publishing,
            self.amending,
            self.rescheduling,
            clock,
            self._runners.looks,
            lambda: self.inbox_relay.wake(),
        )
        self.inbox_relay = InboxRelay(
            connections,
            self._lookout.inbox,
            self.registry,
            self.pipeline,
            self.publishing,
            clock,
            run,
            config.limits,
            self.amender,
            lambda topic: self.dead_letter_writer.keep(topic),
        )
        self.relays = Relays(
            config.outboxes,
            engine,
            self.log_identity,
            self.pipeline.transact,
            NamedTopics(self.registry, connections, run, limits.max_delay_ms),
            self.consuming,
            clock,
            self._runners.outboxes,
            self.inbox_relay.wake,
        )
        self._binary_logs = BinaryLogs(
            [*config.tables, *config.outboxes] if config.binary_logs else [],
            [self.tables.hint, self.relays.hint],
        )
        self.scheduler = Scheduler(
            engine,
            self.registry,
            Changes(self.pipeline.transact),
            clock,
            limits,
            ground.state.schedules,
            lambda next_ms: self.timekeeper.schedule(_SCHEDULES, next_ms),
            self.inbox_relay.wake,
        )
        self.group_completer = GroupCompleter(
            engine,
            self.registry,
            self.activation.subscriptions,
            self.pipeline,
            self.publishing,
            self.reader,
            clock,
            limits,
            self.inbox_relay.wake,
        )
        self.passivator = Passivator(
            self.registry,
            self.activation,
            self.pipeline,
            self.checkpointer,
            self._progress,
            limits.active_topics,
            lambda topic_id: self.timekeeper.schedule(topic_id, None),
        )
        self.dead_letter_writer = DeadLetterWriter(
            self.index,
            self.reader,
            self.registry,
            self.consuming,
            self.pipeline,
            self.activation.subscriptions,
            clock,
            run,
            self._freed,
        )
        self.dead_letters = DeadLetters(
            self.registry,
            self.index,
            self.reader,
            self.pipeline,
            self._runners.looks,
            OriginalTopics(self.registry, self.pipeline.transact),
            self.publishing.check_times_in,
            self._wake_subscription,
        )
        self.push_targets = PushTargets(
            self.registry,
            Changes(self.pipeline.transact),
            partial(run, connections.snapshot),
            clock,
            limits.push_targets,
        )
        self.bulk_changes = BulkChanges(
            self.registry,
            Changes(self.pipeline.transact),
            Selector(
                self.registry,
                self.index,
                self.dead_letters,
                self._runners.looks,
                clock,
                self.backfill,
            ),
            Slices(self.amending, self.rescheduling, self.dead_letters, clock, limits),
            self.dead_letters,
            clock,
            limits,
            ground.state.bulk_changes,
        )
        self.due_counter = DueCounter(
            self.index, self._drop_oldest, clock, self._runners.looks, self.backfill
        )
        self.census = CensusTaker(
            self.registry,
            self.passive_topics,
            self.tables.topics,
            self.index,
            self._drop_oldest,
            clock,
            run,
            self.backfill,
        )

    async def recover(self, ground: Ground) -> None:
        """Replay the journal up to the last group commit."""
        await self.compactor.make_room()
        await Replay(
            ground,
            self.registry,
            self.activation,
            self.passive_topics,
            self._progress,
            self.checkpointer,
            self._runners.work,
        ).run()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run all services until cancelled; report "started" when commits are accepted."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.pipeline.run)
            for part in (
                self.access,
                self.timekeeper,
                self.pump,
                self.recorder,
                self.checkpointer,
                self.compactor,
                self._filler,
                self._backfiller,
                self._namespace_quotas,
                self.inbox_relay,
                self.amender,
                self.dead_letter_writer,
                self.scheduler,
                self.group_completer,
                self.bulk_changes,
                self.deletion,
                self.housekeeper,
                self.log_size,
                self.forgetter,
                self.passivator,
                self.tables,
                self.relays,
                self._binary_logs,
                self.census,
            ):
                nursery.start_soon(part.run)
            for topic in self.registry.active.values():
                self.reschedule(topic)
            task_status.started()

    def close(self) -> None:
        """Close connections and files, after ``run`` has ended."""
        self._backfiller.close()
        self.relays.close()
        self.tables.close()

    # -- after a commit --------------------------------------------------------

    def _took(self, commit_s: float) -> None:
        self.committed_at_ms = self._clock.lease_ms()
        self.totals.commit_us.add(np.array([int(commit_s * 1e6)]))

    def _committed(self, group: Group) -> None:
        self._settlement.take(group)
        if group.inbox_entries:
            self.inbox_relay.wake()
        if self.pipeline.has_ack_room() and not self.pipeline.has_ack_room(but=group):
            self.wake_all()  # deliveries had stopped at this bound

    def _appended(self, topic: Topic) -> None:
        for subscription in topic.subscriptions():
            if subscription.consumers:
                self.pump.wake_subscription(topic, subscription)
        self.reschedule(topic)

    # -- wake-ups --------------------------------------------------------------

    def reschedule(self, topic: Topic) -> None:
        """Tell the timekeeper when to wake the topic next."""
        self.timekeeper.schedule(topic.id, topic.next_wake_ms(self._clock.now_ms()))

    def hasten(self, topic: Topic, subscription: Subscription) -> None:
        """Make the topic's wake-up earlier if a subscription that has changed needs it earlier.

        A delivery changes one subscription, and a topic may have many. So this asks only the
        changed one, while ``reschedule`` asks all. It never makes a wake-up later. A wake-up that
        comes too early does no harm: it calls ``reschedule``.
        """
        if topic.checks_quota:
            self.reschedule(topic)  # the subscription may have been given back messages
        else:
            self.timekeeper.hasten(topic.id, subscription.next_wake_ms())

    def wake_all(self) -> None:
        """Wake every active topic, because deliveries may continue."""
        for topic in self.registry.active.values():
            self.pump.wake(topic)
        for topic in self.tables.topics():
            self.tables.wake(topic)

    def _wake(self, topic_id: int, now_ms: int) -> None:
        if topic_id == _SCHEDULES:
            self.scheduler.wake()
            return
        topic = self.registry.active.get(topic_id) or self.tables.topic(topic_id)
        if topic is not None:
            topic.advance(now_ms)
            if not topic.is_table:
                self._backlogs.look(topic, now_ms)
            self._look_at(topic)

    def _look_at(self, topic: Topic) -> None:
        if topic.is_table:
            self.tables.wake(topic)
        else:
            self.pump.wake(topic)
        self.reschedule(topic)

    def _wake_subscription(self, topic: Topic, subscription: Subscription) -> None:
        if topic.is_table:
            self.tables.wake(topic, subscription)
        else:
            self.pump.wake_subscription(topic, subscription)

    def _freed(self, topic: Topic, subscription: Subscription) -> None:
        self._wake_subscription(topic, subscription)
        self.hasten(topic, subscription)

    def _check_acks(self, topic: Topic, count: int) -> None:
        if topic.is_table:
            self.tables.check_acks(topic)
        else:
            self.pipeline.check_acks(count)

    def _table_pump(self, index: TableIndex, run: Run, may_dispatch: Callable[[], bool]) -> Pump:
        """Return a pump for the tables of one database."""
        return Pump(
            index,
            self._clock,
            self._limits,
            self._frame_bytes,
            run,
            self.reader,
            self._drop_oldest,
            may_dispatch,
            lambda: self._keeper.held,  # a claim must not wait for the end of an outage
            lambda subscription: None,  # claims record the sent rows
            self.reschedule,
            self.hasten,
            _TABLE_WORKERS,
        )

    def _activated(self, topic: Topic) -> None:
        self.passivator.grown()
        if not self.activation.replaying:  # after the replay, ``run`` schedules all topics
            self._look_at(topic)

    def _dead(self, subscription: Subscription) -> None:
        self.dead_letter_writer.take(
            self.registry.active[subscription.record.topic_id], subscription
        )

    def _step_back(self, now_ms: int) -> None:
        _log.warning(
            "clock.set_back", "the wall clock was set back; deliveries follow the new time"
        )
        for topic in [*self.registry.active.values(), *self.tables.topics()]:
            topic.rewind(now_ms)
            self._look_at(topic)
        self._backlogs.rewind()
        self.scheduler.rewind()

    def _subscribed(self, topic: Topic) -> None:
        self._progress.touched.add(topic.id)  # the next checkpoint counts its messages
        self.reschedule(topic)

    def _filled(self, topic: Topic) -> None:
        self._progress.touched.add(topic.id)
        topic.quota_watch.grown = True
        self._look_at(topic)

    # -- the database ----------------------------------------------------------

    async def _check_lease(self) -> None:
        """Raise ``LeaseLost`` unless all changes of tokens and grants were made here.

        Without tokens the broker refuses no client. If another broker has taken the lease and
        created some, this one ends when it learns that, and its connections end with it.
        """
        if not self.access.is_open:
            self._keeper.check()

    def _may_dispatch(self) -> bool:
        """Return whether messages may be delivered now.

        No message may be delivered after the lease has expired, because a successor may deliver it,
        nor while the database is read-only. While the database is unavailable, deliveries go on
        until ``unwritten_acks`` acknowledgements, or ``unwritten_ack_items`` items, wait for it.
        """
        if self.pipeline.state is State.READ_ONLY or not self._keeper.held:
            return False
        return self.pipeline.has_ack_room()

    def _database_changed(self, state: State) -> None:
        if state is State.UP:
            _log.info("database.up", "the database accepts writes")
            self.wake_all()
        else:
            name = state.name.lower().replace("_", "-")
            _log.warning("database.down", "the database is %s", name, state=name)


def _catalog_version(connections: ConnectionPool) -> int:
    """Return the version of the catalog in the database. Blocking."""
    with connections.use() as connection:
        return shared_numbers(connection)[CATALOG]
