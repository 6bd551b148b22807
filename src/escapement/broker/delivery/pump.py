"""The pump, which reads due messages and sends them to consumers.

Its tasks do four things:

- *Workers* read the next *window* of keys from a topic's index into its timing wheel, and send the
  ready messages of subscriptions. They take turns over the topics and subscriptions that were
  *woken*, because they may have work. One worker at a time serves a subscription, so its deliveries
  are in order. A subscription that is woken while it is served gets one more round afterwards.
- *Readers* read the *backlogs* of subscriptions that are behind, which are due messages in the
  index, make them ready, and wake these subscriptions.
- The *collector* sends messages whose back-off is over.
- The *retrier* wakes subscriptions that could not read the log, when it can be read again. The
  commit lanes may have noticed nothing, because they had nothing to write.

The ready messages that a subscription assigns to one consumer at a time are a *run*.
:mod:`~escapement.broker.delivery.sender` sends it in one or more frames.

The decisions are made in :mod:`topic <escapement.broker.topic.topic>`, :mod:`shared
<escapement.broker.subscription.shared>` and :mod:`ordered
<escapement.broker.subscription.ordered>`; this module only waits. Reads that touch the disk or the
database run through ``run``; reads from memory happen at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from escapement.broker.delivery.sender import Sender
from escapement.broker.delivery.stager import Stager
from escapement.broker.limits import BrokerLimits
from escapement.broker.log.log_reader import LogReader
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.ordered import OrderedSubscription
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.broker.upkeep.drop_oldest import DropOldest
from escapement.clock import Clock
from escapement.errors import StorageUnavailable
from escapement.failpoints import failpoint
from escapement.storage.blocking import Run, read_from
from escapement.storage.index import Key
from escapement.storage.index.delivery_order import DeliveryOrder

# Four workers are enough to deliver messages of other topics while one topic reads from disk. More
# workers would only compete for the interpreter.
WORKERS: Final = 4
# Messages that a subscription does not deliver in the order of the index are in many of its blocks,
# and each run reads its blocks again. So such a run has up to this many frames.
_SCATTERED_FRAMES: Final = 4
# The pause after a failed read of the log.
_RETRY_S: Final = 1.0


# A woken subscription; None: a woken topic, which wants a window.
_Work = tuple[Topic, Subscription | None]


class Pump:
    """The tasks that move messages.

    Args:
      frame_bytes: takes a number of frames that are queued now, and returns how large each of them
        may be.
      may_dispatch: returns whether further messages may be delivered now.
      may_send: returns whether messages may be sent that were read, or claimed, before.
      sent: called with a subscription when some of its messages are sent.
      reschedule: called with a topic whose next wake-up time may have changed.
      hasten: called with a subscription whose next wake-up time may have become earlier.
      workers: how many topics and subscriptions are served at the same time.
    """

    def __init__(
        self,
        index: DeliveryOrder,
        clock: Clock,
        limits: BrokerLimits,
        frame_bytes: Callable[[int], int],
        run: Run,
        log: LogReader,
        drop_oldest: DropOldest,
        may_dispatch: Callable[[], bool],
        may_send: Callable[[], bool],
        sent: Callable[[Subscription], None],
        reschedule: Callable[[Topic], None],
        hasten: Callable[[Topic, Subscription], None],
        workers: int = WORKERS,
    ) -> None:
        self._workers = workers
        self._index = index
        self._clock = clock
        self._limits = limits
        self._frame_bytes = frame_bytes
        self._run = run
        self._log = log
        self._drop_oldest = drop_oldest
        self._may_dispatch = may_dispatch
        self._reschedule = reschedule
        self._hasten = hasten
        self._woken: OrderedDict[_Work, None] = OrderedDict()
        self._busy: set[_Work] = set()
        self._resting = trio.lowlevel.ParkingLot()  # workers that found nothing to do
        # Runs of messages whose back-off is over, for the collector to send. A subscription
        # assigns further such runs only when these have been sent.
        self._aside: OrderedDict[tuple[Topic, Subscription], list[HandOver]] = OrderedDict()
        self._no_aside = trio.lowlevel.ParkingLot()  # the collector, if it has nothing to do
        self._reads: OrderedDict[tuple[Topic, SharedSubscription], None] = OrderedDict()
        self._no_reads = trio.lowlevel.ParkingLot()  # readers that found nothing to do
        self._reading: set[SharedSubscription] = set()
        self._dropping: set[Subscription] = set()
        # Subscriptions that could not read the log.
        self._unread: dict[tuple[Topic, Subscription], None] = {}
        self._no_unread = trio.lowlevel.ParkingLot()  # the retrier, if there are none
        self._stager = Stager(index, limits, run)
        self._sender = Sender(index, clock, limits, run, log, may_send, sent, hasten)

    def wake(self, topic: Topic) -> None:
        """Queue a topic that wants a window, and its subscriptions, for the workers."""
        if topic.wants_window(self._clock.now_ms()):
            self._add((topic, None))
        for subscription in topic.subscriptions():
            self.wake_subscription(topic, subscription)

    def wake_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """Queue a subscription that may have something to deliver for the workers."""
        if not subscription.is_idle:
            self._add((topic, subscription))

    def _add(self, work: _Work) -> None:
        self._woken[work] = None
        # A worker that serves it now will look again when it has finished.
        if work not in self._busy:
            self._resting.unpark()

    async def run(self) -> None:
        """Run the workers, the readers, the collector and the retrier forever."""
        async with trio.open_nursery() as nursery:
            for _ in range(self._workers):
                nursery.start_soon(self._worker)
            for _ in range(WORKERS):
                nursery.start_soon(self._reader)
            nursery.start_soon(self._collector)
            nursery.start_soon(self._retrier)

    async def _worker(self) -> None:
        # A worker that rests must not refer to a topic, or the topic could not become passive.
        while True:
            if not await self._serve_next():
                await self._resting.park()
            elif self._woken:
                await trio.lowlevel.checkpoint()

    async def _serve_next(self) -> bool:
        """Serve the first woken topic or subscription that no worker serves.

        Returns False if there is none.
        """
        work = next((work for work in self._woken if work not in self._busy), None)
        if work is None:
            return False
        del self._woken[work]
        self._busy.add(work)
        topic, subscription = work
        try:
            if subscription is None:
                await self._serve_topic(topic)
            else:
                await self._serve(topic, subscription)
        finally:
            self._busy.remove(work)
        return True

    async def _collector(self) -> None:
        """Send messages whose back-off is over. Q6.

        This is a task of its own, because these messages are read from disk, and other messages
        must not wait for that.
        """
        while True:
            while not self._aside:
                await self._no_aside.park()
            await self._collect(*next(iter(self._aside.items())))
            await trio.lowlevel.checkpoint()

    async def _collect(self, work: tuple[Topic, Subscription], hands: list[HandOver]) -> None:
        await self._sender.send(*work, hands, fresh=False)
        del self._aside[work]
        self._add(work)

    async def _retrier(self) -> None:
        """Wake subscriptions that could not read the log, when it can be read again.

        This is a task of its own, because a database that does not answer must not hold up workers.
        """
        while True:
            while not self._unread:
                await self._no_unread.park()
            await trio.sleep(_RETRY_S)
            with suppress(StorageUnavailable):
                await self._log.first_offset(next(iter(self._unread))[0].id, 0)
                while self._unread:
                    self._add(self._unread.popitem()[0])

    def _could_not_read(self, topic: Topic, subscription: Subscription) -> None:
        self._unread[topic, subscription] = None
        self._no_unread.unpark()

    # -- windows -------------------------------------------------------------------

    async def _serve_topic(self, topic: Topic) -> None:
        moved = False
        while topic.wants_window(self._clock.now_ms()):
            reader, plan = topic.begin_window()
            failpoint("window_load")
            topic.end_window(reader, *await read_from(plan, self._run, plan.read_traits))
            moved = True
            await trio.lowlevel.checkpoint()
        if moved:
            for subscription in topic.shared.values():
                self._add((topic, subscription))
        self._reschedule(topic)

    # -- one subscription -------------------------------------------------------------

    async def _serve(self, topic: Topic, subscription: Subscription) -> None:
        while self._may_dispatch():
            progress = False
            if subscription.keep_most is not None and not await self._drop(topic, subscription):
                break  # woken again when the log can be read, or when the read in progress ends
            if isinstance(subscription, SharedSubscription):
                now_ms = self._clock.now_ms()
                if subscription.keeps_order:
                    topic.offer_due(now_ms)
                subscription.sweep(now_ms)
                wanting = subscription.to_scan(now_ms)
                if wanting or subscription.staged.wants_read:
                    self._reads[topic, subscription] = None
                    self._no_reads.unpark()
                if subscription.bands.must_read(wanting):
                    break
            elif isinstance(subscription, OrderedSubscription):
                try:
                    progress = await self._read_log(topic, subscription)
                except StorageUnavailable:
                    self._could_not_read(topic, subscription)
                    break
            frames = _SCATTERED_FRAMES if subscription.scatters else 1
            room_bytes = self._frame_bytes(frames * len(subscription.consumers))
            frame_messages = frames * topic.sizes.frame_messages(
                self._limits.deliver_messages, min(room_bytes, self._limits.deliver_bytes)
            )
            expired = subscription.counts.expired
            tried = (topic, subscription) not in self._aside
            hands = subscription.assign(self._clock.now_ms(), frame_messages, tried=tried)
            # Expired messages leave room for others.
            progress = progress or subscription.counts.expired > expired
            if aside := [hand for hand in hands if hand.tried]:
                self._aside[topic, subscription] = aside
                self._no_aside.unpark()
            at_once = [hand for hand in hands if not hand.tried]
            await self._sender.send(topic, subscription, at_once, fresh=True)
            if subscription.is_idle or not (hands or progress):
                break
            await trio.lowlevel.checkpoint()
        self._hasten(topic, subscription)

    # -- backlogs --------------------------------------------------------------------

    async def _reader(self) -> None:
        """Read the backlogs of subscriptions forever, while workers send ready messages."""
        while True:
            if await self._read_next():
                await trio.lowlevel.checkpoint()
            else:
                await self._no_reads.park()

    async def _read_next(self) -> bool:
        """Read for the next subscription that wants a read; return False if none does."""
        # Only one reader at a time reads for a subscription. Two would read the same messages, and
        # compete with its deliveries for the processor.
        work = next((work for work in self._reads if work[1] not in self._reading), None)
        if work is None:
            return False
        del self._reads[work]
        topic, subscription = work
        self._reading.add(subscription)
        try:
            await self._read(topic, subscription)
        finally:
            self._reading.remove(subscription)
        self._add((topic, subscription))
        return True

    async def _read(self, topic: Topic, subscription: SharedSubscription) -> None:
        if subscription.staged.wants_read:
            await self._stager.read(topic, subscription)
        # While a worker drops messages over the quota, it reads the backlog itself, and requests
        # the next scan afterwards.
        if subscription not in self._dropping:
            await self._scan(topic, subscription)

    async def _scan(self, topic: Topic, subscription: SharedSubscription) -> None:
        """Read a part of a subscription's backlog from the index, and make it ready."""
        now_ms = self._clock.now_ms()
        frontier = Key(topic.frontier_ms(now_ms) + 1, 0)
        scan = subscription.next_scan(frontier, now_ms)
        if scan is None:
            return
        plan = self._index.plan(topic.id, scan.start, scan.stop, scan.most)
        for band in scan.bands:
            band.begin_scan(plan.stop, catches_up=plan.stop >= frontier)
        try:
            keys = await read_from(plan, self._run, plan.read_traits)
            found = subscription.found(scan, *keys)
            if found.height:
                await self._stager.read(topic, subscription, found, plan)
        except BaseException:
            for band in scan.bands:
                band.break_scan()
            raise
        subscription.end_scan(scan.bands, *keys, scan.expired_until_ms)

    async def _drop(self, topic: Topic, subscription: Subscription) -> bool:
        """Drop messages over the backlog quota; return False if that is not possible now."""
        if isinstance(subscription, SharedSubscription) and subscription.bands.is_reading:
            return False
        self._dropping.add(subscription)
        try:
            await self._drop_oldest.drop(topic, subscription)
        except StorageUnavailable:
            self._could_not_read(topic, subscription)
            return False
        finally:
            self._dropping.remove(subscription)
        return True

    async def _read_log(self, topic: Topic, subscription: OrderedSubscription) -> bool:
        """Expire old messages of an exclusive or failover subscription, then read its next ones.

        Returns whether it has read.

        Raises:
          StorageUnavailable: if the database cannot be reached.
        """
        if subscription.expiry.begin_sweep():
            await self._drop_oldest.expire(topic, subscription)
        if not subscription.wants_read(topic.next_offset):
            return False
        position, until = subscription.begin_read(), topic.next_offset
        try:
            parts = await self._log.read(topic.id, position, until)
        except BaseException:
            subscription.break_read()
            raise
        for part in parts:
            topic.sizes.saw(part.batch)
        subscription.end_read(parts, parts[-1].end_offset if parts else until)
        return True
