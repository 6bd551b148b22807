"""The dead-letter writer: acknowledges dead messages, and copies them to the dead-letter topic.

A message is *dead* if its last permitted delivery failed, or if it expired or was dropped and the
policy asks for a dead letter. A subscription holds its dead messages (``dead``) until the writer
has handled them, so they are not delivered again. One task works in steps, and each step is durable
before the next begins. A step fetches the payloads. Then one item of a group commit acknowledges
the messages and writes their copies into the inbox. After a crash at any point a message is either
retried or has its copy, never both and never neither.

A message that is too large for an inbox entry is retried forever. If a step fails for a reason
other than the database, only that subscription waits: it keeps its dead messages, and the pause
before each retry doubles. The same holds while the dead-letter topic does not exist and may not be
created. A copy that is written to the inbox now would reach a topic that is created later, and no
subscription of that topic would keep it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import trio

from escapement.broker.delivery.consuming import Consuming
from escapement.broker.inbox.refusals import Refusals, ends_the_broker
from escapement.broker.log.log_reader import LogReader
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription.dead_letters import dead_letter
from escapement.broker.subscription.dead_letters.dead_letter import DEAD_LETTERS_SUBSCRIPTION, Dead
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import (
    AlreadyExists,
    EscapementError,
    IndexDamaged,
    LogDamaged,
    ShuttingDown,
    StorageUnavailable,
    WrongBundle,
)
from escapement.event_log import EventLog
from escapement.failpoints import failpoint
from escapement.message import MessageBatch
from escapement.names import TopicName
from escapement.position import EARLIEST
from escapement.storage.blocking import Run, read_from
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.lane import State
from escapement.storage.engine.base import TransactionAborted
from escapement.storage.inbox.inbox import DEAD_LETTERS
from escapement.storage.index import DelayedIndex
from escapement.storage.log.published import Published

_log = EventLog(__name__)

# The most messages, and the most bytes, of one step. If the messages are far apart in the log, each
# is in another row, and the step reads that many rows.
_STEP_MESSAGES: Final = 1_024
_STEP_BYTES: Final = 4 << 20
# The pause before a retry while the database is unavailable, or while the filler has not added the
# messages to the index again.
_RETRY_S: Final = 1.0
# The back-off of a message that is too large for a dead letter: an hour.
_TOO_LARGE_RETRY_MS: Final = 3_600_000


class DeadLetterWriter:
    """The dead-letter writer of one broker.

    Args:
      subscriptions: the subscriptions of all active topics, by id.
      on_change: called with a subscription that holds fewer dead messages.
    """

    def __init__(
        self,
        index: DelayedIndex,
        log: LogReader,
        registry: Registry,
        consuming: Consuming,
        pipeline: CommitPipeline,
        subscriptions: dict[int, Subscription],
        clock: Clock,
        run: Run,
        on_change: Callable[[Topic, Subscription], None],
    ) -> None:
        self._index = index
        self._log = log
        self._registry = registry
        self._consuming = consuming
        self._pipeline = pipeline
        self._subscriptions = subscriptions
        self._clock = clock
        self._run = run
        self._on_change = on_change
        self._waiting: OrderedDict[tuple[Topic, Subscription], None] = OrderedDict()
        self._work = trio.Event()
        # By the names of topic and subscription. A name in back-off may have several subscriptions:
        # one that was deleted, or sought, and its successor.
        self._refusals = Refusals()
        self._resting: dict[str, dict[tuple[Topic, Subscription], None]] = {}

    def take(self, topic: Topic, subscription: Subscription) -> None:
        """Queue a subscription that has dead messages."""
        self._waiting[topic, subscription] = None
        self._work.set()

    @property
    def problems(self) -> dict[str, str]:
        """Why dead messages wait, by topic and subscription."""
        return self._refusals.reasons

    async def run(self) -> None:
        """Write dead letters forever, one step of each subscription in turn."""
        async with trio.open_nursery() as nursery:
            while True:
                while not self._waiting:
                    self._work = trio.Event()
                    await self._work.wait()
                (topic, subscription), _ = self._waiting.popitem(last=False)
                whom = f"{topic.name.full} {subscription.record.name}"
                if trio.current_time() < self._refusals.until_s(whom):
                    self._rest(whom, topic, subscription)
                    continue
                try:
                    await self._step(topic, subscription)
                except (StorageUnavailable, TransactionAborted, ShuttingDown):
                    await trio.sleep(_RETRY_S)
                except EscapementError as error:
                    if ends_the_broker(error):
                        raise
                    if self._refusals.refused(whom, str(error), trio.current_time()):
                        _log.warning(
                            "dead_letters.waiting",
                            "%s: dead letters wait: %s",
                            whom,
                            error,
                            topic=topic.name.full,
                            subscription=subscription.record.name,
                        )
                    self._rest(whom, topic, subscription)
                    nursery.start_soon(self._later, whom)
                    continue
                self._refusals.over(whom)
                if subscription.dead:
                    self._waiting[topic, subscription] = None

    def _rest(self, whom: str, topic: Topic, subscription: Subscription) -> None:
        """Keep a subscription until the end of the back-off, when ``_later`` queues it again."""
        self._resting.setdefault(whom, {})[topic, subscription] = None

    async def _later(self, whom: str) -> None:
        await trio.sleep_until(self._refusals.until_s(whom))
        for topic, subscription in self._resting.pop(whom, {}):
            self.take(topic, subscription)

    async def _step(self, topic: Topic, subscription: Subscription) -> None:
        if self._gone(subscription):
            subscription.dead.clear()
            return
        most = topic.sizes.frame_messages(_STEP_MESSAGES, _STEP_BYTES)
        record = subscription.record
        to = dead_letter.target(topic.name, record.name, record.policy)
        await self._keep(to)
        # The subscription may have been deleted meanwhile, with its dead messages.
        dead = subscription.dead.next(most, subscription.acked)
        if not dead.rows.height or self._gone(subscription):
            return
        if isinstance(subscription, SharedSubscription):
            try:
                batch = await self._from_index(topic, subscription, dead)
            except IndexDamaged:
                if await self._let_go_of_forgotten(topic, subscription, dead):
                    return
                raise
        else:
            batch = await self._from_log(topic, dead)
        moves = topic.amendments.moves
        published_ms = await self._log.accepted_ms(topic.id, dead.rows.offsets, moves)
        if self._gone(subscription):
            return
        if len(batch) < dead.rows.height:
            raise LogDamaged(f"the log of {topic.name.full} lacks messages that were committed")
        if self._pipeline.state is not State.UP:
            raise StorageUnavailable(
                "dead letters cannot be stored while the database accepts no writes"
            )
        failpoint("dead_letter")
        # No ``await`` from here to the submission, so that no acknowledged message gets a copy.
        fits = dead_letter.sizes(batch) <= dead_letter.MAX_MESSAGE_BYTES
        at = np.flatnonzero(fits & ~subscription.acked.contains(dead.rows.offsets))
        now_ms = self._clock.now_ms()
        copies = dead_letter.marked(
            batch.take(at), dead.pick(at), published_ms[at], topic.name, record.name, now_ms
        )
        durable = trio.Event()
        offsets = dead.rows.offsets[at]
        written = dead_letter.inbox_entries(to, f"{DEAD_LETTERS}{record.id}", copies, offsets)
        subscription.dead_letter(offsets, written, durable.set)
        if not fits.all():
            _log.warning(
                "dead_letters.too_large",
                "%s: a message is too large to be a dead letter; it is retried",
                topic.name.full,
                topic=topic.name.full,
                subscription=record.name,
            )
            subscription.revive(dead.rows.pick(~fits), now_ms + _TOO_LARGE_RETRY_MS, now_ms)
        self._on_change(topic, subscription)
        await durable.wait()

    def _gone(self, subscription: Subscription) -> bool:
        return self._subscriptions.get(subscription.record.id) is not subscription

    async def _keep(self, to: TopicName) -> None:
        """Ensure that the dead-letter topic exists, with the subscription that keeps its messages.

        If the topic belongs to another bundle, the inbox relay of that bundle does this.

        Raises:
          NotFound: if the topic does not exist and may not be created.
        """
        try:
            topic = await self._registry.ensure_topic(to)
        except WrongBundle:
            return
        await self.keep(topic)

    async def keep(self, topic: Topic) -> None:
        """Ensure that a dead-letter topic has the subscription that keeps its messages."""
        if topic.subscription(DEAD_LETTERS_SUBSCRIPTION) is None:
            with suppress(AlreadyExists):
                await self._consuming.create(topic, DEAD_LETTERS_SUBSCRIPTION, "shared", EARLIEST)

    async def _from_index(
        self, topic: Topic, subscription: SharedSubscription, dead: Dead
    ) -> MessageBatch:
        fetch = self._index.fetch(topic.id, dead.rows.due_ms, dead.rows.offsets)
        # The index may have dropped messages in the range that the filler has still to add.
        unfilled = subscription.unfilled
        there, batch = await read_from(fetch, self._run, fetch.read_there, *unfilled)
        if there is not None:
            raise StorageUnavailable("dead messages are not yet in the index again")
        return batch

    async def _let_go_of_forgotten(
        self, topic: Topic, subscription: SharedSubscription, dead: Dead
    ) -> bool:
        """Acknowledge dead messages that the log no longer has. Return whether there were any.

        Called if the index lacks dead messages. This happens after the clock was set back: a
        subscription read finished messages from the index, and then the index was lost. An index
        that is built again from the log does not have them.
        """
        offsets, moves = dead.rows.offsets, topic.amendments.moves
        gone = await self._log.forgotten(topic.id, offsets, topic.next_offset, moves)
        if gone.any() and not self._gone(subscription):
            subscription.acknowledge(offsets[gone], None)
            self._on_change(topic, subscription)
        return bool(gone.any())

    async def _from_log(self, topic: Topic, dead: Dead) -> MessageBatch:
        """Return the dead messages of an ordered subscription, which the index may not have.

        Returns fewer messages if the topic was deleted and its rows are being freed.
        """
        left, moves = dead.rows.offsets, topic.amendments.moves
        parts: list[Published] = []
        while len(left):
            part, count = await self._log.published(topic.id, left, moves, _STEP_BYTES)
            parts.append(part)
            left = left[count:]
        return Published.concat(parts).batch
