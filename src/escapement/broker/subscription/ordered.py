"""An exclusive or failover subscription: reads the log in arrival order and ignores delays.

It has one active consumer. The other consumers of a failover subscription stand by, in the order in
which they joined. Messages are read from the log from the offset ``position`` on, except
acknowledged and held ones. Messages that were read and not yet delivered are *buffered*: they are
the ready messages of this subscription. A message that is given back, or whose back-off has ended,
lowers the position. So it is read again and the order is restored: the log is the only queue. P7.
Until it is read again, the message is not held, and its attempts are remembered.

The broker reads the log: ``begin_read`` returns the offset to read from, and ``end_read`` takes the
rows. If the position is lowered during a read, its result is discarded.

Messages expire by due time, although they are delivered without regard to it.
:mod:`~escapement.broker.subscription.dead_letters.backlog_ages` finds the oldest ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.log.log_reader import LogPart
from escapement.broker.subscription.dead_letters.backlog_ages import SPAN_MESSAGES, Ages
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.subscription import Environment, Subscription
from escapement.message import Int64s, MessageBatch
from escapement.sorting import lowest
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.offsets import OffsetSet

# ``is_to_read`` examines this many unacknowledged offsets in one step.
_MISSING_AT_ONCE: Final = 1 << 16


class _Buffered(NamedTuple):
    """Messages that were read from the log and not delivered yet."""

    rows: Rows
    batch: MessageBatch
    accepted_at_ms: int

    def pick(self, which: Int64s) -> _Buffered:
        return _Buffered(self.rows.pick(which), self.batch.take(which), self.accepted_at_ms)


class OrderedSubscription(Subscription):
    """A subscription with one active consumer, in arrival order."""

    def __init__(self, record: SubscriptionRecord, environment: Environment, now_ms: int) -> None:
        super().__init__(record, environment, now_ms)
        self.position = record.start_offset
        self.ages = Ages()  # due times of the backlog; used if there is a time to live
        # An earlier broker may have delivered messages before this offset without recording it.
        self._doubtful_below = 0
        self._buffer: deque[_Buffered] = deque()
        # The attempts, by offset, of messages that were given back and must be read again.
        self._attempts: dict[int, int] = {}
        self._reading = False
        self._overtaken = False  # whether the position was lowered during the current read

    # -- consumers ----------------------------------------------------------------

    @property
    def active(self) -> Consumer | None:
        """The active consumer; None if there is none."""
        return self.consumers[0] if self.consumers else None

    def join(self, consumer: Consumer) -> None:
        super().join(consumer)
        consumer.outlet.active(consumer.wire_id, self.active is consumer)

    def leave(self, consumer: Consumer, now_ms: int) -> None:
        was_active = self.active is consumer
        super().leave(consumer, now_ms)
        if was_active and self.active is not None:
            self.active.outlet.active(self.active.wire_id, True)

    @property
    def ready_count(self) -> int:
        return sum(part.rows.height for part in self._buffer)

    # -- reading ---------------------------------------------------------------------

    def covers(self, due_ms: Int64s, offsets: Int64s) -> npt.NDArray[np.bool_]:
        covers: npt.NDArray[np.bool_] = offsets >= self.record.start_offset
        return covers

    def wants_read(self, end_offset: int) -> bool:
        """Return whether the active consumer can get messages, and none are buffered for it.

        Args:
          end_offset: the end of the topic's log.
        """
        return (
            not self._reading
            and not self._buffer
            and self.active is not None
            and self.active.capacity > 0
            and self.position < end_offset
            and len(self.held) < self.limits.unacked_messages
        )

    def begin_read(self) -> int:
        """Begin a read; return its first offset. ``end_read`` or ``break_read`` must follow."""
        assert not self._reading, "two reads at once"
        self.position = self.acked.first_missing(self.position)
        self._reading = True
        self._overtaken = False
        return self.position

    def end_read(self, parts: Sequence[LogPart], end_offset: int) -> None:
        """End a read: buffer the messages that are to be delivered.

        Args:
          parts: the rows of the log, in order.
          end_offset: where the read ended; ``parts`` has all rows of the log up to this offset.
        """
        self._reading = False
        if self._overtaken:
            return
        self._note_doubt(parts)
        for base_offset, due_ms, batch, accepted_at_ms in parts:
            offsets = np.arange(base_offset, base_offset + len(batch))
            due_ms = self._amendments.moves.current(offsets, due_ms)
            wanted = offsets >= self.position
            for taken in (self.acked, self.held):
                wanted &= ~taken.contains(offsets)
            uncancelled = self._amendments.uncancelled(offsets)
            if uncancelled is not None:
                wanted &= uncancelled | self._was_given_back(offsets)
            at = np.flatnonzero(wanted)
            if not len(at):
                continue
            offsets = offsets[at]
            attempts = np.zeros(len(at), np.int64)
            if self._attempts:
                attempts[:] = [self._attempts.pop(offset, 0) for offset in offsets.tolist()]
            self.held.add(offsets)
            if len(at) < len(batch):
                batch = batch.take(at)
            rows = Rows(due_ms[at], offsets, attempts)
            self._buffer.append(_Buffered(rows, batch, accepted_at_ms))
        self.position = max(self.position, end_offset)

    def _note_doubt(self, parts: Sequence[LogPart]) -> None:
        """Note which messages of these log rows an earlier broker may have delivered unrecorded."""
        for part in parts:
            if part.accepted_at_ms <= self.doubtful_until_ms:
                self._doubtful_below = max(self._doubtful_below, part.end_offset)

    def is_to_read(self, low: int, high: int) -> bool:
        """Return whether this subscription still needs a log row with offsets in ``[low, high)``.

        It needs each message until the acknowledgement is durable, or the message is durably
        cancelled without having been delivered.
        """
        low = max(low, self.record.start_offset)
        if self.acked.is_waiting(low, high):
            return True
        while (low := self.acked.first_missing(low)) < high:
            missing = self.acked.missing(low, high, _MISSING_AT_ONCE)
            cancelled = self._amendments.durably_cancelled(missing)
            if cancelled is None or not (cancelled & ~self.holds(missing)).all():
                return True
            low = int(missing[-1]) + 1
        return False

    # -- expiring and dropping --------------------------------------------------------

    def expire_read(self, low: int, high: int, parts: Sequence[LogPart], until_ms: int) -> None:
        """Expire messages with offsets in ``[low, high)``, and note the due times of the others.

        Args:
          parts: the first log rows of that range; the range may go on behind them.
          until_ms: messages due by then have expired. If the range is read for the first time,
            messages accepted later are not examined, because they cannot have expired.
        """
        self._note_doubt(parts)
        in_tail = low >= self.ages.known_to
        waiting, _ = self.retries.waiting()
        for part in parts:
            if in_tail and part.accepted_at_ms > until_ms:
                self.ages.tail_since(part.accepted_at_ms)
                return
            offsets = np.arange(max(low, part.base_offset), min(high, part.end_offset))
            due_ms = part.due_ms[offsets - part.base_offset]
            rows = self._at_rest(Rows.fresh(due_ms, offsets))
            # Messages in retry expire when their back-off ends. Messages that are being moved to
            # another due time do not expire now.
            rows = rows.pick(~np.isin(rows.offsets, waiting.offsets))
            over = rows.due_ms <= until_ms
            over &= ~self._amendments.withheld.contains(rows.offsets)
            rest = rows.pick(~over)
            for first in range(int(offsets[0]), int(offsets[-1]) + 1, SPAN_MESSAGES):
                end = min(first + SPAN_MESSAGES, int(offsets[-1]) + 1)
                since_ms = rest.due_ms[(rest.offsets >= first) & (rest.offsets < end)]
                self.ages.looked(first, end, int(since_ms.min()) if len(since_ms) else None)
            if over.any():
                self._take_out(rows.offsets[over])
                self.expire(rows.pick(over))

    def restore(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Read messages again whose cancellation was undone."""
        self.due_again(offsets, due_ms)
        self._rewind_to(int(offsets.min()))

    def due_again(self, offsets: Int64s, due_ms: Int64s) -> None:
        """Note the due times of messages that were given back or moved, so that they can expire."""
        if self.expiry.ttl_ms:
            self.ages.again(offsets, due_ms)
            self.expiry.keeps(int(due_ms.min()))

    def first_unsettled(self, start: int) -> int:
        """Return the first offset from ``start`` on that this subscription has to acknowledge."""
        return self.acked.first_missing(max(start, self.record.start_offset))

    def drop_first(self, parts: Sequence[LogPart], most: int) -> None:
        """Drop the first messages of these log rows, at most ``most``, except in-flight ones."""
        self._note_doubt(parts)
        for part in parts:
            offsets = np.arange(part.base_offset, part.end_offset)
            rows = self._at_rest(Rows.fresh(part.due_ms, offsets)).pick(slice(0, most))
            if rows.height:
                self._take_out(rows.offsets)
                self._drop(rows)
                most -= rows.height

    def _at_rest(self, rows: Rows) -> Rows:
        """Return the pending rows that are not in flight, with current due times and attempts.

        Dead messages are not among them.
        """
        offsets = rows.offsets
        open_ = offsets >= self.record.start_offset
        for taken in (self.acked, self.in_flight.offsets):
            open_ &= ~taken.contains(offsets)
        open_ &= ~np.isin(offsets, self.dead.rows.offsets)
        uncancelled = self._amendments.uncancelled(offsets)
        if uncancelled is not None:
            open_ &= uncancelled | self.held.contains(offsets) | self._was_given_back(offsets)
        rows = rows.pick(open_)
        tried = Rows.concat([self.retries.waiting()[0], self._ready_again()])
        at = np.flatnonzero(np.isin(rows.offsets, tried.offsets))
        if len(at):
            order = np.argsort(tried.offsets)
            found = np.searchsorted(tried.offsets, rows.offsets[at], sorter=order)
            rows.attempts[at] = tried.attempts[order[found]]
        return rows._replace(due_ms=self._amendments.moves.current(rows.offsets, rows.due_ms))

    def _take_out(self, offsets: Int64s) -> None:
        """Remove messages from ready and from retry."""
        self._forget_ready(offsets)
        self.retries.cancel(offsets)
        for offset in offsets.tolist() if self._attempts else ():
            self._attempts.pop(offset, None)

    def break_read(self) -> None:
        """End a read that failed; the next read begins at the same position."""
        self._reading = False

    def _rewind_to(self, offset: int) -> None:
        """Empty the buffer, and lower the position so that these messages are read again.

        Args:
          offset: lower the position at least to this offset.
        """
        while self._buffer:
            rows = self._buffer.popleft().rows
            self.held.discard(rows.offsets)
            self._remember(rows)
            offset = min(offset, int(rows.offsets[0]))
        self.position = min(self.position, offset)
        self._overtaken = True

    def _was_given_back(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages were given back and must still be read again; bool[n]."""
        return np.isin(offsets, np.fromiter(self._attempts, np.int64, len(self._attempts)))

    def _remember(self, rows: Rows) -> None:
        tried = rows.pick(rows.attempts > 0)
        self._attempts.update(zip(tried.offsets.tolist(), tried.attempts.tolist(), strict=True))

    # -- delivering --------------------------------------------------------------------

    def assign(self, now_ms: int, frame_messages: int, *, tried: bool = True) -> list[HandOver]:
        """Put the next buffered messages in flight to the active consumer, in arrival order.

        Returns them as runs of at most ``frame_messages``. ``tried`` has no effect.
        """
        consumer = self.active
        taken: list[HandOver] = []
        # Held messages that are not buffered: in flight, in retry or dead.
        unacked = len(self.held) - self.ready_count
        room = self.limits.unacked_messages - unacked
        if consumer is None or not self._buffer or room <= 0:
            return taken
        room = self.throttle.grant(room, len(self.in_flight), now_ms)
        while self._buffer and min(consumer.capacity, room) > 0:
            rows, batch, accepted_at_ms = part = self._buffer.popleft()
            over = rows.due_ms <= self.expiry.until_ms(now_ms)
            if over.any():
                self.expire(rows.pick(over))
                if not over.all():
                    self._buffer.appendleft(part.pick(np.flatnonzero(~over)))
                continue
            count = min(consumer.capacity, frame_messages, room)
            if count < rows.height:
                self._buffer.appendleft(part.pick(np.arange(count, rows.height)))
                rows, batch, _ = part.pick(np.arange(count))
            # For the lag: delays are ignored, so a message can be delivered once it is accepted.
            wanted_ms = np.full(rows.height, accepted_at_ms)
            (hand,) = self._deliver([(consumer, rows.height)], rows, now_ms, wanted_ms)
            taken.append(hand._replace(batch=batch))
            room -= rows.height
        return taken

    def was_sent_before(self, rows: Rows) -> npt.NDArray[np.bool_] | None:
        before = (rows.attempts > 1) | (rows.offsets < self._doubtful_below)
        return before if before.any() else None

    def advance(self, now_ms: int) -> bool:
        may_expire = self.expiry.advance(now_ms)
        return super().advance(now_ms) or may_expire

    def next_wake_ms(self) -> int | None:
        return lowest((super().next_wake_ms(), self.expiry.next_wake_ms()))

    def _again(self, rows: Rows, *, waited: bool) -> None:
        self.held.discard(rows.offsets)
        self.due_again(rows.offsets, rows.due_ms)
        self._remember(rows)
        self._rewind_to(int(rows.offsets.min()))

    def was_handed(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        return super().was_handed(offsets) | self._was_given_back(offsets)

    def holds(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        return super().holds(offsets) | self._was_given_back(offsets)

    def kept(self) -> OffsetSet:
        if not self._attempts:
            return self.held
        kept = self.held.copy()
        kept.add(np.fromiter(self._attempts, np.int64, len(self._attempts)))
        return kept

    def may_have_had(self, rows: Rows, published_ms: Int64s) -> npt.NDArray[np.bool_]:
        return (published_ms <= self.doubtful_until_ms) & self.covers(rows.due_ms, rows.offsets)

    def _never_sent(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(offsets), bool)
        for rows, _, _ in self._buffer:
            found |= np.isin(offsets, rows.offsets[rows.attempts == 0])
        return found

    def _forget_ready(self, offsets: Int64s) -> None:
        if self._buffer:
            self._rewind_to(int(self._buffer[0].rows.offsets[0]))

    def _ready_again(self) -> Rows:
        waiting = [part.rows for part in self._buffer]
        offsets = np.array(list(self._attempts), np.int64)
        attempts = np.array(list(self._attempts.values()), np.int64)
        return Rows.concat([*waiting, Rows(np.zeros_like(offsets), offsets, attempts)])
