"""Publishing: checks producers and batches, and passes batches to the commit pipeline.

A *producer* is a name under which one connection at a time publishes batches to a topic, with
ascending sequence numbers. After the commit of a batch, :mod:`~escapement.broker.settlement`
applies it; if the commit is refused, its ``fail`` callback is called. Either way the producer has
one batch less in progress, and tasks that wait for this are woken.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from escapement.broker.limits import BrokerLimits
from escapement.broker.publishing.replacing import Replacing
from escapement.broker.registry.registry import Registry
from escapement.broker.topic.backlogs import Backlogs
from escapement.broker.topic.handles import ProducerHandle
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.publication import Publication, Stored
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.checkpointer import Checkpointer
from escapement.clock import Clock
from escapement.dedup import Digests
from escapement.durations import format as duration_text
from escapement.errors import (
    DelaysDisabled,
    DelayTooLong,
    EscapementError,
    InvalidRequest,
)
from escapement.group_names import members_of
from escapement.message import NO_TIME, NO_TIMES, Int64s, Times
from escapement.names import TopicName, check_name
from escapement.sorting import bounds
from escapement.storage.catalog.catalog import Namespace
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Append


class Publishing:
    """Answers requests to open producers and to publish."""

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        backlogs: Backlogs,
        checkpointer: Checkpointer,
        clock: Clock,
        limits: BrokerLimits,
        replacing: Replacing,
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._backlogs = backlogs
        self._checkpointer = checkpointer
        self._clock = clock
        self._limits = limits
        self._replacing = replacing
        self._moved = trio.lowlevel.ParkingLot()

    # -- producers -------------------------------------------------------------

    async def open(
        self,
        topic_text: str,
        name: str,
        epoch: int,
        fenced: Callable[[EscapementError], None],
    ) -> ProducerHandle:
        """Open a producer for a connection, and *fence* the name's previous holder.

        The batches of a fenced holder are refused. If the topic does not exist, it is created.

        Args:
          epoch: the producer epoch under which the client held the name before it lost its
            connection; -1: take the name over, with a new epoch.
          fenced: called with the error when the new holder loses the name.

        Raises:
          ProducerFenced: if ``epoch`` is given and the name has a newer one.
          NotFound: if the topic does not exist and may not be created.
        """
        topic = await self._registry.ensure_topic(TopicName.parse(topic_text))
        check_name("producer", name)
        producer, epoch = await self._registry.producers.open(topic, name, epoch, self._settle)
        handle = ProducerHandle(topic, fenced, producer)
        producer.take_over(handle, epoch)
        return handle

    async def _settle(self, producer: Producer) -> None:
        """Fence the connection that holds a producer, and wait until its batches have ended.

        Their commits decide the last stored sequence number, which the next holder gets.
        """
        holder, producer.holder = producer.holder, None
        if isinstance(holder, ProducerHandle):
            holder.fenced(producer.fenced_error())
        while producer.pending:
            await self._moved.park()

    def settled(self) -> None:
        """Wake the tasks that wait for batches in progress: some were committed or refused."""
        self._moved.unpark_all()

    async def progress(self) -> None:
        """Wait until some batches in progress are committed or refused."""
        await self._moved.park()

    def close(self, handle: ProducerHandle) -> None:
        """Release a producer whose connection ends. Its batches in progress continue."""
        if handle.producer.holder is handle:
            handle.producer.holder = None
            self._registry.producers.release(handle.topic, handle.producer)

    # -- batches ---------------------------------------------------------------

    def must_wait(self, topic: Topic) -> bool:
        """Return whether a batch may have to wait before it is published.

        If not, ``turn``, ``ready``, ``room`` and ``weigh`` would return at once.
        """
        policy = topic.policy
        return (
            topic.has_quota
            or bool(policy.max_publish_rate or policy.max_publish_rate_per_producer)
            or not self._pipeline.has_room
            or self._checkpointer.is_full
            or topic.replace_keys.unchecked
        )

    async def ready(self, topic: Topic) -> None:
        """Check once after a start that the log still has the messages of replace keys.

        Raises:
          StorageUnavailable: the database cannot be reached.
        """
        if topic.replace_keys.unchecked:
            await self._replacing.check(topic)

    async def room(self) -> None:
        """Wait until the pipeline and the index have room for a batch."""
        await self._checkpointer.room()
        if not self._pipeline.has_room:
            await self._pipeline.room()

    async def turn(self, handle: ProducerHandle, sequence: int, count: int, after: int) -> None:
        """Wait before a batch is published, for as long as the publish rates of its topic require.

        Args:
          sequence: the sequence number of the batch's first message.
          count: the number of messages.
          after: the sequence number of the message before the batch.

        Raises:
          Busy: if the wait would be longer than ``publish_hold_ms``.
        """
        policy, producer = handle.topic.policy, handle.producer
        if not (policy.max_publish_rate or policy.max_publish_rate_per_producer):
            return
        fresh = producer.fresh(sequence, count, after)
        now_ms, most_ms = self._clock.now_ms(), self._limits.publish_hold_ms
        wait_ms = handle.topic.publish_rate.hold_ms(policy, producer, fresh, now_ms, most_ms)
        if wait_ms:
            await trio.sleep(wait_ms / 1000)

    async def weigh(self, topic: Topic) -> None:
        """Count a topic's backlog exactly if an estimate says that it has reached its quota.

        Call this before ``publish`` and ``wait_ms``, which check the quota.
        """
        await self._backlogs.weigh(topic)

    def wait_ms(self, topic: Topic, count: int) -> int:
        """Return how long ``count`` messages without a producer must wait for the publish rate.

        If they need not wait, the result is 0, and they count towards the rate.

        Raises:
          BacklogFull: the topic's backlog has reached its quota.
        """
        now_ms = self._clock.now_ms()
        self._backlogs.check(topic, now_ms)
        return topic.publish_rate.wait_ms(topic.policy, count, now_ms)

    def publish(self, handle: ProducerHandle, publication: Publication) -> None:
        """Submit a batch to the commit pipeline, or report at once that it is already stored.

        Raises:
          DelaysDisabled, DelayTooLong, DelayTooShort: its times are refused; nothing has changed.
          InvalidRequest: a delay or time is negative.
          ProducerFenced, SequenceGap, Busy: its producer or its sequence number is refused.
          Busy, LimitExceeded: the broker cannot remember more dedup keys or replace keys, or the
            topic more groups.
          NotFound, Busy: its topic was deleted, or is being deleted.
          GroupClosed: one of its messages names a closed group.
          BacklogFull: the topic's backlog has reached its quota.
          StorageUnavailable, StorageReadOnly: the log accepts no writes now.
        """
        topic, producer = handle.topic, handle.producer
        self._registry.check_open(topic)
        count = len(publication.batch)
        known = producer.admit(handle, publication.sequence, count, publication.after)
        if known == count:
            publication.done(Stored(-1, True))
            return
        publication.producer = producer
        if known:
            publication.trim(known)
        self.sort_out(topic, publication)
        # Only now, because a repeated batch that is stored already is confirmed, although its topic
        # may have reached its quota since, or it may have come too near its time.
        if len(publication.batch):
            self._backlogs.check(topic, self._clock.now_ms())
            self.check_times(topic, publication.times)
        replacing = self._replacing.of(topic, publication)
        publication.times = self.obeying(topic, publication.times, len(publication.batch))
        members = members_of(publication.batch.groups)
        if members:
            topic.groups.admit(members, self._limits.groups)

        def fail(error: EscapementError) -> None:
            topic.groups.refuse(members)
            publication.refused(error)
            self.settled()

        append = Append(
            topic.id,
            publication.body,
            len(publication.batch),
            publication.times,
            producer.id,
            publication.last_sequence,
            publication,
            fail,
            digests=publication.new_digests,
            members=members,
            opens=producer.stores(topic.id),
            replacing=replacing,
        )
        try:
            self._pipeline.submit(append)
        except EscapementError:
            topic.groups.refuse(members)
            raise
        publication.queued()
        producer.queued(publication.last_sequence)

    def sort_out(self, topic: Topic, publication: Publication) -> None:
        """Remove the messages of a batch whose dedup keys its topic knows already.

        Raises:
          Busy, LimitExceeded: the broker cannot remember the new keys; nothing has changed.
        """
        window_ms = topic.policy.dedup_window_ms
        if not window_ms:
            publication.digests = None
        elif publication.digests is not None:
            now_ms = self._clock.now_ms()
            topic.dedup.forget(now_ms, window_ms)
            publication.sort_out(topic.dedup, now_ms - window_ms)

    def find(self, name: TopicName, digests: Digests) -> Int64s:
        """Return the offset of the message that was stored with each dedup key; int64[n].

        The offset is -1 if there is no such message, its key is no longer remembered, or the
        message is not durable yet.

        Args:
          digests: hashes of the dedup keys.

        Raises:
          NotFound: the topic does not exist.
        """
        topic = self._registry.topic(name)
        return topic.dedup.find(digests, self._clock.now_ms() - topic.policy.dedup_window_ms)

    def obeying(self, topic: Topic, times: Times, count: int) -> Times:
        """Return the times of a batch by the delay policy of its topic, with the default delay.

        Call ``check_times`` first.

        Args:
          count: the number of messages.

        Raises:
          DelayTooShort, DelayTooLong: the policy refuses the delay of a message.
        """
        policy = topic.delays
        if policy is None or not count:
            return times
        filled = policy.filled(times, count)
        policy.check(filled, count, self._clock.now_ms(), times)
        if filled is not times:
            self.check_times(topic, filled)  # the default may exceed the broker's maximum
        return filled

    def check_times(self, topic: Topic, times: Times) -> None:
        """Check that a topic accepts messages with these delays or delivery times.

        This does not include the delay policy of the topic; see ``obeying``. Raises the errors of
        ``check_times_in``.
        """
        self.check_times_in(topic.namespace, times)

    def check_times_in(self, namespace: Namespace, times: Times) -> None:
        """Check that a namespace accepts messages with these delays or delivery times.

        Raises:
          DelaysDisabled: a time is given, and the namespace does not accept delayed messages.
          DelayTooLong: a time lies past the maximum delay.
          InvalidRequest: a time is negative.
        """
        if times is NO_TIMES:
            return
        columns = [column for column in (times.delay_ms, times.at_ms) if column is not None]
        if any(bounds(column)[0] < NO_TIME for column in columns):
            raise InvalidRequest("a delay or delivery time is negative")
        if not times.given:
            return
        if not namespace.delays_enabled:
            raise DelaysDisabled(
                f"delayed messages are disabled in {namespace.tenant}/{namespace.name}; enable "
                "them with `escapement admin namespaces enable-delayed-message`"
            )
        most_ms = self._limits.max_delay_ms
        now_ms = self._clock.now_ms()
        for column, furthest_ms in ((times.delay_ms, most_ms), (times.at_ms, now_ms + most_ms)):
            if column is not None and bounds(column)[1] > furthest_ms:
                raise DelayTooLong(
                    f"a delivery time lies past the maximum delay of {duration_text(most_ms)}"
                )
