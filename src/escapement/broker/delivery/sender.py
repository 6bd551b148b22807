"""The sender, which fetches the messages of runs from the index and sends them to their consumers.

A *run* has the ready messages that a subscription assigned to one consumer at a time. The runs of a
round of delivery may be many and short, such as one message for each of a hundred consumers. So the
sender reads several runs together, up to the size of one frame. It then queues the frames of each
run at its consumer.

Reads that touch the disk or the database run through ``run``; reads from memory happen at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import trio

from escapement.broker.limits import BrokerLimits
from escapement.broker.log.log_reader import LogReader
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Subscription
from escapement.broker.topic.topic import Topic
from escapement.clock import Clock
from escapement.errors import IndexDamaged, StorageUnavailable
from escapement.message import Blobs, Int64s, MessageBatch, cuts
from escapement.storage.blocking import Run
from escapement.storage.index.delivery_order import DeliveryOrder

# From this many messages on, runs of messages that are in many blocks of the index are assembled in
# a thread even if all blocks are in memory, because that takes some milliseconds.
_SCATTERED_ROWS: Final = 1024
# The pause before the log is read again while the database is unavailable.
_RETRY_S: Final = 1.0
# How often the task that sends a run checks whether deliveries are allowed again. It rarely waits.
_PAUSE_S: Final = 0.05
# The bytes of a message in a frame besides its strings: their lengths, the priority, the offset,
# the due time, the attempts, a flag and the ack wait.
_ROW_BYTES: Final = 44


class _Part(NamedTuple):
    """A run, and those of its messages that are to be sent."""

    hand: HandOver
    rows: Rows


class Sender:
    """Fetches and sends runs that are in flight.

    Args:
      may_send: returns whether messages may be sent now.
      sent: called with a subscription when some of its messages are sent.
      hasten: called with a subscription whose next wake-up time may have become earlier.
    """

    def __init__(
        self,
        index: DeliveryOrder,
        clock: Clock,
        limits: BrokerLimits,
        run: Run,
        log: LogReader,
        may_send: Callable[[], bool],
        sent: Callable[[Subscription], None],
        hasten: Callable[[Topic, Subscription], None],
    ) -> None:
        self._index = index
        self._clock = clock
        self._limits = limits
        self._run = run
        self._log = log
        self._may_send = may_send
        self._sent = sent
        self._hasten = hasten

    async def send(
        self, topic: Topic, subscription: Subscription, hands: Sequence[HandOver], fresh: bool
    ) -> None:
        """Fetch the messages of runs, and send each run to its consumer.

        Messages that were acknowledged or taken back since their run was put in flight are not
        sent, and the consumer gets their permits back.

        Args:
          hands: the runs.
          fresh: whether the runs were put in flight in this same synchronous step, so that no
            message can have been acknowledged or taken back yet.
        """
        most = topic.sizes.frame_messages(self._limits.deliver_messages, self._limits.deliver_bytes)
        for group in _groups(hands, most):
            fresh = not await self._send_group(topic, subscription, group, fresh) and fresh

    async def _send_group(
        self, topic: Topic, subscription: Subscription, hands: Sequence[HandOver], fresh: bool
    ) -> bool:
        """Send runs that are fetched together; return whether this took a wait."""
        parts = [_Part(hand, hand.rows) for hand in hands]
        rows, batch, waited = hands[0].rows, hands[0].batch, False
        if batch is None:
            if not fresh:
                parts = _still_wanted(subscription, hands)
            if not parts:
                return False
            wanted = Rows.concat([part.rows for part in parts])
            rows, batch, waited = await self._payloads(topic, subscription, wanted)
            fresh = fresh and not waited
            if rows.height < wanted.height:
                fresh = False
                parts = [_among(part, rows.offsets) for part in parts]
        again = rows.height > 0 and subscription.was_sent_before(rows) is not None
        for part, own in zip(parts, batch.parts([part.rows.height for part in parts]), strict=True):
            if await self._send_run(topic, subscription, part, own, again, fresh):
                waited, fresh = True, False
        return waited

    async def _send_run(
        self,
        topic: Topic,
        subscription: Subscription,
        part: _Part,
        batch: MessageBatch,
        again: bool,
        fresh: bool,
    ) -> bool:
        """Send the messages of a run; return whether this took a wait.

        Args:
          batch: the messages of ``part.rows``.
          again: whether some of them may have to be marked redelivered.
          fresh: as for ``send``.
        """
        (hand, rows), waited = part, False
        consumer = hand.consumer
        # A run that was put in flight earlier must not be sent after the lease has expired.
        if not fresh and not self._may_send():
            self._hasten(topic, subscription)
        while not fresh and not self._may_send() and not consumer.closed:
            waited = True
            await trio.sleep(_PAUSE_S)
        # When a consumer leaves, its subscription takes back unsent messages without an attempt.
        if consumer.closed:
            return waited
        if not fresh:
            now_ms = self._clock.now_ms()
            if subscription.throttle.is_paused(now_ms) or consumer.halts != hand.halts:
                subscription.put_back(hand, now_ms)
                return waited
            held = hand.rows.pick(subscription.still_held(hand))
            consumer.give_back(hand.rows.height - held.height, hand.halts)
            if held.height < rows.height:
                batch = batch.take(np.flatnonzero(np.isin(rows.offsets, held.offsets)))
                rows = held
            if not rows.height:
                return waited
        subscription.note_sent(hand)
        self._sent(subscription)
        most = min(self._limits.deliver_messages, topic.frame_messages or rows.height)
        for frame, own in self._frames(rows, batch, most):
            before = subscription.was_sent_before(frame) if again else None
            waits = subscription.ack_waits(hand, frame.offsets, self._clock.now_ms())
            consumer.outlet.deliver(consumer.wire_id, frame, before, own, waits)
        return waited

    def _frames(
        self, rows: Rows, batch: MessageBatch, most: int
    ) -> Iterator[tuple[Rows, MessageBatch]]:
        """Divide a run into frames, and yield the rows and messages of each.

        A frame has at most ``most`` rows. It is larger than ``deliver_bytes`` only if it has one
        message, or the whole run is at most twice as large.
        """
        most_bytes = self._limits.deliver_bytes
        if rows.height <= most and batch.size_bytes <= 2 * most_bytes:
            yield rows, batch
            return
        for low, high in cuts(batch.string_sizes() + _ROW_BYTES, most_bytes, most):
            yield rows.pick(slice(low, high)), batch.part(low, high)

    async def _payloads(
        self, topic: Topic, subscription: Subscription, rows: Rows
    ) -> tuple[Rows, MessageBatch, bool]:
        """Return the messages of ``rows`` that still exist, and whether fetching them took a wait.

        A missing message is an error of the index, unless the log has forgotten the message or the
        subscription's past is still being filled in from the log.
        """
        staged = subscription.staged if isinstance(subscription, SharedSubscription) else None
        fetch = self._index.fetch(topic.id, rows.due_ms, rows.offsets, staged)
        # Messages in the range that is being filled in from the log may have left the index since
        # the subscription found them.
        unfilled = subscription.unfilled
        large = subscription.scatters and rows.height >= _SCATTERED_ROWS
        at_hand = not large and fetch.in_memory
        try:
            if at_hand:
                there, batch = fetch.read_there(*unfilled)
            else:
                self._hasten(topic, subscription)  # ack timeouts run while the disk is slow
                there, batch = await self._run(fetch.read_there, *unfilled)
        except IndexDamaged:
            left = await self._without_forgotten(topic, subscription, rows)
            if left.height == rows.height:
                raise
            rows = left
            if not rows.height:
                return rows, MessageBatch(Blobs.empty(0)), True
            rows, batch, _ = await self._payloads(topic, subscription, rows)
            return rows, batch, True
        if there is not None:
            assert isinstance(subscription, SharedSubscription)
            gone = np.ones(rows.height, bool)
            gone[there] = False
            subscription.await_fill(rows.offsets[gone])
            rows = rows.pick(there)
        if rows.height:
            topic.sizes.saw(batch)
        return rows, batch, not at_hand

    async def _without_forgotten(
        self, topic: Topic, subscription: Subscription, rows: Rows
    ) -> Rows:
        """Acknowledge messages that the log has forgotten; return the others that are still held.

        The clock may have been set back after the subscription found such messages in the index,
        and that index has been lost since.
        """
        moves = topic.amendments.moves
        while True:
            try:
                gone = await self._log.forgotten(topic.id, rows.offsets, topic.next_offset, moves)
                break
            except StorageUnavailable:
                await trio.sleep(_RETRY_S)
        if gone.any():
            subscription.acknowledge(rows.offsets[gone], None)
        return rows.pick(~gone & subscription.held.contains(rows.offsets))


def _groups(hands: Sequence[HandOver], most: int) -> Iterator[list[HandOver]]:
    """Divide runs into groups to fetch together, of at most ``most`` messages if not of one run.

    A run whose messages are in memory already is a group of its own.
    """
    group: list[HandOver] = []
    height = 0
    for hand in hands:
        if group and (hand.batch is not None or height + hand.rows.height > most):
            yield group
            group, height = [], 0
        group.append(hand)
        height += hand.rows.height if hand.batch is None else most
    if group:
        yield group


def _still_wanted(subscription: Subscription, hands: Sequence[HandOver]) -> list[_Part]:
    """Return the runs with messages that are still in flight, and these messages.

    The consumers of the other runs get their permits back.
    """
    parts = []
    for hand in hands:
        rows = hand.rows.pick(subscription.still_held(hand))
        if hand.consumer.closed or not rows.height:
            hand.consumer.give_back(hand.rows.height, hand.halts)
        else:
            parts.append(_Part(hand, rows))
    return parts


def _among(part: _Part, offsets: Int64s) -> _Part:
    """Return a part with only those of its messages that have one of these offsets."""
    return part._replace(rows=part.rows.pick(np.isin(part.rows.offsets, offsets)))
