"""Publishing: checks producers and batches, and passes batches to the commit pipeline.

A committed batch comes back through ``Settlement``, a failed one through its ``fail`` callback.
Either way its producer advances, and tasks that wait for the producer to settle are woken.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from escapement.broker.limits import BrokerLimits
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
from escapement.message import Int64s, Times
from escapement.names import TopicName, check_name
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.items import Append


class Publishing:
    """The requests to open producers and to publish."""

    def __init__(
        self,
        registry: Registry,
        pipeline: CommitPipeline,
        backlogs: Backlogs,
        checkpointer: Checkpointer,
        clock: Clock,
        limits: BrokerLimits,
    ) -> None:
        self._registry = registry
        self._pipeline = pipeline
        self._backlogs = backlogs
        self._checkpointer = checkpointer
        self._clock = clock
        self._limits = limits
        self._moved = trio.lowlevel.ParkingLot()

    # -- producers -------------------------------------------------------------

    async def open(
        self,
        topic_text: str,
        name: str,
        epoch: int,
        fenced: Callable[[EscapementError], None],
    ) -> ProducerHandle:
        """Open a producer under a name. The previous holder of the name is fenced.

        Args:
          epoch: -1 to take the name over, or the epoch under which the producer held it before
            its connection was lost.
          fenced: called when the new holder loses the name.

        Raises:
          ProducerFenced: if ``epoch`` is given and the name has a newer one.
        """
        topic = await self._registry.ensure_topic(TopicName.parse(topic_text))
        check_name("producer", name)
        producer, epoch = await self._registry.producers.open(topic, name, epoch, self._settle)
        handle = ProducerHandle(topic, fenced, producer)
        producer.take_over(handle, epoch)
        return handle

    async def _settle(self, producer: Producer) -> None:
        """Fence the holder, and wait until no batch of it is in progress."""
        holder, producer.holder = producer.holder, None
        if isinstance(holder, ProducerHandle):
            holder.fenced(producer.fenced_error())
        while producer.pending:
            await self._moved.park()

    def settled(self) -> None:
        """Wake the tasks that wait for batches: some are committed or refused."""
        self._moved.unpark_all()

    def close(self, handle: ProducerHandle) -> None:
        """Give the name up. Batches in progress continue."""
        if handle.producer.holder is handle:
            handle.producer.holder = None

    # -- batches ---------------------------------------------------------------

    async def room(self) -> None:
        """Wait until the pipeline and the index have room for a batch."""
        await self._checkpointer.room()
        if not self._pipeline.has_room:
            await self._pipeline.room()

    async def turn(self, handle: ProducerHandle, sequence: int, count: int, after: int) -> None:
        """Hold a batch back for as long as the publish rates of its topic require.

        Args:
          sequence: of its first message; ``after``: of the message before it.

        Raises:
          Busy: if that would take longer than ``publish_hold_ms``.
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
        """Count the backlog if it may be at its quota. Precedes ``publish`` and ``wait_ms``."""
        await self._backlogs.weigh(topic)

    def wait_ms(self, topic: Topic, count: int) -> int:
        """Return how long messages without a producer must wait for the topic's publish rate.

        If they need not wait, they count towards the rate.

        Raises:
          BacklogFull: the topic's backlog has reached its quota.
        """
        now_ms = self._clock.now_ms()
        self._backlogs.check(topic, now_ms)
        return topic.publish_rate.wait_ms(topic.policy, count, now_ms)

    def publish(self, handle: ProducerHandle, publication: Publication) -> None:
        """Submit a batch to the commit pipeline, or report at once that it is already stored.

        Raises:
          DelaysDisabled, DelayTooLong, InvalidRequest: its times are refused; nothing has changed.
          ProducerFenced, SequenceGap, Busy: its sequence is refused.
          Busy, LimitExceeded: there is no room for its dedup keys or its groups.
          NotFound, Busy: its topic was deleted, or is being deleted.
          GroupClosed: one of its messages names a closed group.
          BacklogFull: the topic's backlog has reached its quota.
          StorageUnavailable, StorageReadOnly: the log accepts no writes now.
        """
        topic, producer = handle.topic, handle.producer
        self._registry.check_open(topic)
        self.check_times(topic, publication.times)
        count = len(publication.batch)
        known = producer.admit(handle, publication.sequence, count, publication.after)
        if known == count:
            publication.done(Stored(-1, True))
            return
        self._backlogs.check(topic, self._clock.now_ms())
        publication.producer = producer
        publication.trim(known)
        window_ms = topic.policy.dedup_window_ms
        if publication.digests is not None and window_ms:
            now_ms = self._clock.now_ms()
            topic.dedup.forget(now_ms, window_ms)
            publication.sort_out(topic.dedup, now_ms - window_ms)
        members = members_of(publication.batch.groups)
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
            digests=publication.new_digests if window_ms else None,
            members=members,
        )
        try:
            self._pipeline.submit(append)
        except EscapementError:
            topic.groups.refuse(members)
            raise
        publication.queued()
        producer.queued(publication.last_sequence)

    def find(self, name: TopicName, digests: Digests) -> Int64s:
        """Return the offset of the message stored with each dedup key; int64[n].

        The offset is -1 if no message is found: it does not exist, its key is no longer remembered,
        or it is not durable yet.

        Raises:
          NotFound: the topic does not exist.
        """
        topic = self._registry.topic(name)
        return topic.dedup.find(digests, self._clock.now_ms() - topic.policy.dedup_window_ms)

    def check_times(self, topic: Topic, times: Times) -> None:
        """Check that a topic takes messages with these times.

        Raises:
          DelaysDisabled, DelayTooLong, InvalidRequest: see :meth:`publish`.
        """
        for column in (times.delay_ms, times.at_ms):
            if column is not None and int(column.min()) < -1:
                raise InvalidRequest("a delay or delivery time is negative")
        if not times.given:
            return
        if not topic.namespace.delays_enabled:
            raise DelaysDisabled(
                f"delayed messages are disabled in {topic.name.namespace_full}; enable them "
                "with `escapement admin namespaces enable-delayed-message`"
            )
        most_ms = self._limits.max_delay_ms
        now_ms = self._clock.now_ms()
        for column, furthest_ms in ((times.delay_ms, most_ms), (times.at_ms, now_ms + most_ms)):
            if column is not None and int(column.max()) > furthest_ms:
                raise DelayTooLong(
                    f"a delivery time lies past the maximum delay of {duration_text(most_ms)}"
                )
