"""Buries what was tried too often: acknowledged here, a copy in the dead-letter topic.

One task. A subscription hands over what has failed for the last time (``dead``); it holds
it until then, so nobody is sent it again. In steps, each of which is durable before the
next begins, the payloads are fetched, and then one item of a group commit acknowledges
the messages and puts their copies into the inbox. A crash at any point leaves either a
message that is tried again or one that has its copy, never both and never neither.

A message that is too large for a letter is tried again for ever. What refuses a step for a
reason of its own (not the database) refuses that subscription alone: its dead stay where they
are, and it is tried again, later each time. So it is where the dead-letter topic does not exist and
may not be created: whoever created it later would have letters there that nobody keeps.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from contextlib import suppress
from typing import Final

import numpy as np
import trio

from escapement.broker.delivery.consuming import Consuming
from escapement.broker.letters.refusals import Refusals, ends_the_broker
from escapement.broker.log.logreader import LogReader
from escapement.broker.registry.registry import Registry
from escapement.broker.subscription import deadletter
from escapement.broker.subscription.deadletter import KEEPER, Dead
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
)
from escapement.message import MessageBatch
from escapement.names import TopicName
from escapement.position import EARLIEST
from escapement.storage.blocking import Run
from escapement.storage.commit.commit import CommitPipeline
from escapement.storage.commit.lane import State
from escapement.storage.engine.base import TransactionAborted
from escapement.storage.index import DelayedIndex

_log = logging.getLogger(__name__)

# Messages of one step: their log rows are asked for one by one, where they lie apart.
_STEP_MESSAGES: Final = 1_024
_STEP_BYTES: Final = 4 << 20
# While the database is away, or a fill is under way.
_RETRY_S: Final = 1.0
_TOO_LARGE_RETRY_MS: Final = 3_600_000


class Undertaker:
    """See the module's docstring.

    Args:
      subscriptions: every living one, by id.
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
    ) -> None:
        self._index = index
        self._log = log
        self._registry = registry
        self._consuming = consuming
        self._pipeline = pipeline
        self._subscriptions = subscriptions
        self._clock = clock
        self._run = run
        self._waiting: OrderedDict[tuple[Topic, Subscription], None] = OrderedDict()
        self._work = trio.Event()
        self._refusals = Refusals()  # of subscriptions

    def take(self, topic: Topic, subscription: Subscription) -> None:
        """The subscription has something dead."""
        self._waiting[topic, subscription] = None
        self._work.set()

    @property
    def problems(self) -> dict[str, str]:
        """Why dead letters wait, by topic and subscription."""
        return self._refusals.reasons

    async def run(self) -> None:
        """Work for ever, one step of each subscription in turn; who is refused waits aside."""
        async with trio.open_nursery() as nursery:
            while True:
                if not self._waiting:
                    self._work = trio.Event()
                    await self._work.wait()
                (topic, subscription), _ = self._waiting.popitem(last=False)
                whom = f"{topic.name.full} {subscription.record.name}"
                if trio.current_time() < self._refusals.until_s(whom):
                    continue  # it comes back by itself
                try:
                    await self._step(topic, subscription)
                except (StorageUnavailable, TransactionAborted, ShuttingDown):
                    await trio.sleep(_RETRY_S)
                except EscapementError as error:
                    if ends_the_broker(error):
                        raise
                    if self._refusals.refused(whom, str(error), trio.current_time()):
                        _log.warning("%s: dead letters wait: %s", whom, error)
                    nursery.start_soon(self._later, topic, subscription, whom)
                    continue
                self._refusals.over(whom)
                if subscription.dead:
                    self._waiting[topic, subscription] = None

    async def _later(self, topic: Topic, subscription: Subscription, whom: str) -> None:
        await trio.sleep_until(self._refusals.until_s(whom))
        self.take(topic, subscription)

    async def _step(self, topic: Topic, subscription: Subscription) -> None:
        if self._gone(subscription):
            subscription.dead.clear()
            return
        most = topic.sizes.frame_messages(_STEP_MESSAGES, _STEP_BYTES)
        record = subscription.record
        to = deadletter.target(topic.name, record.name, record.policy)
        await self._keep(to)
        # Meanwhile it may have been deleted, and what it held with it.
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
            raise StorageUnavailable("dead letters cannot be stored now")
        # From here to the hand-in nothing waits: what was acknowledged meanwhile is left out.
        fits = deadletter.sizes(batch) <= deadletter.MAX_MESSAGE_BYTES
        at = np.flatnonzero(fits & ~subscription.acked.contains(dead.rows.offsets))
        now_ms = self._clock.now_ms()
        copies = deadletter.marked(
            batch.take(at), dead.pick(at), published_ms[at], topic.name, record.name, now_ms
        )
        durable = trio.Event()
        offsets = dead.rows.offsets[at]
        written = deadletter.letters(to, f"dead/{record.id}", copies, offsets)
        subscription.bury(offsets, written, durable.set)
        if not fits.all():
            _log.warning("%s: a message is too large to be a dead letter", topic.name.full)
            subscription.revive(dead.rows.pick(~fits), now_ms + _TOO_LARGE_RETRY_MS, now_ms)
        await durable.wait()

    def _gone(self, subscription: Subscription) -> bool:
        return self._subscriptions.get(subscription.record.id) is not subscription

    async def _keep(self, to: TopicName) -> None:
        """See that the topic is there, and a subscription that keeps what comes."""
        topic = await self._registry.ensure_topic(to)
        if topic.subscription(KEEPER) is None:
            with suppress(AlreadyExists):
                await self._consuming.create(topic, KEEPER, "shared", EARLIEST)

    async def _from_index(
        self, topic: Topic, subscription: SharedSubscription, dead: Dead
    ) -> MessageBatch:
        fetch = self._index.fetch(topic.id, dead.rows.due_ms, dead.rows.offsets)
        # What is still to be filled in may have left the index since it was handed out.
        unfilled = (subscription.record.fill_from, subscription.record.fill_until)
        if fetch.in_memory:
            there, batch = fetch.read_there(*unfilled)
        else:
            there, batch = await self._run(fetch.read_there, *unfilled)
        if there is not None:
            raise StorageUnavailable("what is to be buried has not been filled in yet")
        return batch

    async def _let_go_of_forgotten(
        self, topic: Topic, subscription: SharedSubscription, dead: Dead
    ) -> bool:
        """Be done with what neither the log nor the index has any more; whether there was any.

        The clock was set back: a subscription came upon it in an index that is lost since.
        """
        offsets, moves = dead.rows.offsets, topic.amendments.moves
        gone = await self._log.forgotten(topic.id, offsets, topic.next_offset, moves)
        if gone.any() and not self._gone(subscription):
            subscription.acknowledge(offsets[gone], None)
        return bool(gone.any())

    async def _from_log(self, topic: Topic, dead: Dead) -> MessageBatch:
        """For who reads the log: the index has only what shared subscriptions want.

        Less than was asked for if the topic has been deleted and its rows are being freed.
        """
        wanted = dead.rows.offsets
        parts: list[MessageBatch] = []
        found = 0
        while found < len(wanted):
            low, high = int(wanted[found]), int(wanted[-1]) + 1
            rows = await self._log.read(topic.id, low, high, _STEP_BYTES)
            if not rows or rows[0].base_offset > low:
                break
            for part in rows:
                until = int(np.searchsorted(wanted, part.end_offset))
                parts.append(part.batch.take(wanted[found:until] - part.base_offset))
                found = until
        return MessageBatch.concat(parts)
