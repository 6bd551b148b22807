"""Messages in flight: delivered, and neither acknowledged nor returned.

A *delivery* is one frame sent to one consumer: a row for each message, with a deadline. The set
``offsets`` has all messages in flight. A row is in flight while it is marked *alive* and its offset
is in the set. A message is in flight in at most one row (invariant 5).

Taking a message back *kills* its row, which clears the mark, and removes its offset from the set.
Acknowledging a message removes its offset from the set. Its row is killed, too, if it is known.
While this is so for all acknowledgements, every row marked alive is in flight.

Rows that are not in flight only take memory. They are swept once they outnumber the others. So
memory follows the number of messages in flight, and a sweep costs O(1) for each delivered message.

A delivery is *recorded* when its messages have been in flight for so long that the attempt must
survive a restart. It is *unstored* until a checkpoint takes it.

Pure: the time arrives as an argument. The subscription's timer wheel watches the deadlines, and
calls ``expire`` with the delivery's id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from escapement.broker.subscription.delivery.delivery import Delivery, DeliveryPart
from escapement.broker.subscription.delivery.delivery_lookup import DeliveryLookup
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.start_position import NEVER_MS
from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet
from escapement.storage.offsets.offset_bits import OffsetBits

# The fewest rows not in flight that are worth a sweep.
_SWEEP_ROWS: Final = 8192


class InFlightMessage(NamedTuple):
    """The delivery of one message that is in flight; ``deadline_ms`` is None without a deadline."""

    consumer_id: int
    attempts: int
    since_ms: int
    deadline_ms: int | None


class InFlight:
    """All messages in flight, by delivery."""

    __slots__ = (
        "_alive",
        "_coming",
        "_deliveries",
        "_delivery_lookup",
        "_next_id",
        "_rows",
        "_unrecorded",
        "_unstored",
        "offsets",
    )

    def __init__(self) -> None:
        self.offsets = OffsetSet()
        self._deliveries: dict[int, Delivery] = {}
        self._coming: dict[int, Delivery] = {}  # by the offset to be acknowledged next
        self._delivery_lookup = DeliveryLookup(self._deliveries)
        self._next_id = 1
        self._rows = 0  # the rows of all deliveries in memory
        self._alive = 0  # how many of them are marked alive
        self._unrecorded: deque[int] = deque()  # ids of sent deliveries, the oldest first
        self._unstored: list[int] = []  # ids of recorded deliveries that no checkpoint has

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def deliveries(self) -> int:
        """The number of deliveries in memory."""
        return len(self._deliveries)

    def holds(self, delivery_id: int, height: int) -> npt.NDArray[np.bool_]:
        """Return which of a delivery's ``height`` rows are still in flight."""
        held = np.zeros(height, bool)
        delivery = self._deliveries.get(delivery_id)
        if delivery is not None:
            held[self._live(delivery)] = True
        return held

    def delivery_ids(self) -> Int64s:
        """Return the ids of all deliveries that may still have rows in flight."""
        return np.fromiter(self._deliveries, np.int64, len(self._deliveries))

    def deliver(
        self,
        takers: Sequence[tuple[int, int]],
        rows: Rows,
        deadline_ms: Int64s,
        now_ms: int,
        wanted_ms: Int64s,
    ) -> list[tuple[int, Rows]]:
        """Record a delivery to each of some consumers; return the ids and rows of all deliveries.

        The deliveries share the given columns.

        Args:
          takers: the id of each consumer and the number of its rows, in the order of the rows.
          rows: the delivered rows; ``attempts`` already counts this delivery.
          deadline_ms: when each message is taken back unless it is acknowledged; ``NEVER_MS`` for
            no deadline; int64[n].
          wanted_ms: the earliest time at which each message could have been delivered; int64[n].
        """
        added = self.offsets.add(rows.offsets)
        assert added == rows.height, "a message is in flight twice"
        self._rows += rows.height
        self._alive += rows.height
        alive = np.empty(rows.height, bool)
        alive.fill(True)
        made: list[tuple[int, Rows]] = []
        high = 0
        for consumer_id, height in takers:
            part = slice(high, high := high + height)
            own = rows.pick(part)
            delivery = Delivery(
                consumer_id, own, deadline_ms[part], alive[part], now_ms, wanted_ms[part]
            )
            self._deliveries[self._next_id] = delivery
            self._coming[int(own.offsets[0])] = delivery
            made.append((self._next_id, own))
            self._next_id += 1
        return made

    def take_acknowledged(self, offsets: Int64s) -> list[DeliveryPart]:
        """Mark the rows of acknowledged messages as no longer alive; return them by delivery.

        The caller must then call ``settle``. Offsets in the order of delivery are found in O(n),
        the others by a search.

        Args:
          offsets: messages that were not acknowledged before; each once.
        """
        found: list[DeliveryPart] = []
        at = 0
        while at < len(offsets):
            delivery = self._coming.pop(int(offsets[at]), None)
            if delivery is None:
                parts = self._delivery_lookup.find(offsets[at:])
                for part in parts:
                    self._kill(part)
                return found + parts
            part = delivery.follow(offsets[at:] if at else offsets)
            self._kill(part)
            found.append(part)
            at += part.height
        return found

    def _expect(self, delivery: Delivery) -> None:
        """Note the offset of a delivery that is expected to be acknowledged next."""
        following = delivery.next_offset
        if following is not None:
            self._coming[following] = delivery

    def settle(self, offsets: Int64s | OffsetBits) -> int:
        """Remove acknowledged messages from flight; return how many were in flight."""
        settled = self.offsets.discard(offsets)
        self._sweep()
        return settled

    def delivery_of(self, offset: int) -> InFlightMessage | None:
        """Return the delivery of a message; None if the message is not in flight."""
        for delivery, at in self._parts(np.array([offset])):
            deadline_ms = int(delivery.deadline_ms[at][0])
            return InFlightMessage(
                delivery.consumer_id,
                int(delivery.rows.counts[at][0]),
                delivery.since_ms,
                None if deadline_ms >= NEVER_MS else deadline_ms,
            )
        return None

    def find(self, offsets: Int64s, consumer_id: int | None = None) -> Rows:
        """Return a copy of the rows of these messages that are in flight, in no order.

        Args:
          consumer_id: only those of this consumer; None for all.
        """
        return Rows.concat([part.rows for part in self._parts(offsets, consumer_id)])

    def take_back(self, offsets: Int64s, consumer_id: int | None = None) -> Rows:
        """Remove messages from flight (only this consumer's, if given); return their rows."""
        parts = self._parts(offsets, consumer_id)
        rows = Rows.concat([self._remove(part) for part in parts])
        self._sweep()
        return rows

    def _parts(self, offsets: Int64s, consumer_id: int | None = None) -> list[DeliveryPart]:
        """Find the rows of messages in flight (only to this consumer, if given)."""
        if not self._all_live:
            offsets = offsets[self.offsets.contains(offsets)]
        parts = self._delivery_lookup.find(offsets)
        return [one for one in parts if consumer_id in (None, one.delivery.consumer_id)]

    def extend(self, offsets: Int64s, consumer_id: int, deadline_ms: int) -> int:
        """Extend the deadlines of messages in flight to this consumer; return their number."""
        parts = self._parts(offsets, consumer_id)
        for delivery, at in parts:
            delivery.deadline_ms[at] = np.maximum(delivery.deadline_ms[at], deadline_ms)
        return sum(part.height for part in parts)

    def terms(self, offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Return the attempts and the deadlines of messages in flight, in the given order."""
        parts = self._delivery_lookup.find(offsets)
        found = np.concatenate([part.rows.offsets for part in parts])
        order = np.argsort(found)
        at = order[found[order].searchsorted(offsets)]
        assert bool((found[at] == offsets).all()), "a message is not in flight"
        counts = np.concatenate([part.rows.counts for part in parts])[at]
        return counts, np.concatenate([part.delivery.deadline_ms[part.at] for part in parts])[at]

    def note_sent(self, delivery_id: int, *, recorded: bool = False) -> None:
        """Note that a delivery was sent to its consumer.

        Args:
          recorded: whether its attempts are recorded already.
        """
        if delivery_id in self._deliveries:
            self._deliveries[delivery_id].sent = True
            if not recorded:
                self._unrecorded.append(delivery_id)

    @property
    def has_unrecorded(self) -> bool:
        """Whether there are sent deliveries that ``take_unrecorded`` has not examined yet."""
        return bool(self._unrecorded)

    def take_unrecorded(self, now_ms: int, after_ms: int) -> Rows:
        """Mark deliveries made at least ``after_ms`` ago as recorded; return their rows in flight.

        Each delivery is examined once. Most have no rows in flight by then, and are left out.
        """
        parts = []
        while self._unrecorded:
            delivery_id = self._unrecorded[0]
            delivery = self._deliveries.get(delivery_id)
            # The age is negative if the wall clock was set back; then the delivery is recorded.
            if delivery is not None and 0 <= now_ms - delivery.since_ms < after_ms:
                break
            self._unrecorded.popleft()
            if delivery is not None and delivery.next_offset is not None:
                delivery.recorded = True
                self._unstored.append(delivery_id)
                parts.append(self._open(delivery))
        return Rows.concat(parts)

    @property
    def has_unstored(self) -> bool:
        """Whether deliveries were recorded since the last ``take_unstored``."""
        return bool(self._unstored)

    def take_unstored(self) -> Rows:
        """Return the rows in flight that were recorded since the last call, for a checkpoint."""
        ids, self._unstored = self._unstored, []
        there = (self._deliveries[id] for id in ids if id in self._deliveries)
        return Rows.concat([self._open(delivery) for delivery in there])

    def take_back_consumer(self, consumer_id: int) -> tuple[Rows, Rows]:
        """Take back all messages of a consumer that has left.

        Returns the rows that were sent to it, and those that were not sent yet.
        """
        sent: list[Rows] = []
        unsent: list[Rows] = []
        for delivery_id, delivery in list(self._deliveries.items()):
            if delivery.consumer_id == consumer_id:
                rows = self._remove(DeliveryPart(delivery, np.flatnonzero(delivery.alive)))
                (sent if delivery.sent else unsent).append(rows)
                self._drop(delivery_id)
        return Rows.concat(sent), Rows.concat(unsent)

    def clear(self) -> None:
        """Remove all messages and deliveries."""
        for delivery_id in list(self._deliveries):
            self._drop(delivery_id)
        self.offsets = OffsetSet()

    def expire(self, delivery_id: int, now_ms: int) -> tuple[Rows, int | None]:
        """Take back the messages of one delivery that are past their deadline.

        Returns:
          The rows taken back, and the next deadline of the same delivery; None if no row of it is
            in flight any more.
        """
        delivery = self._deliveries.get(delivery_id)
        if delivery is None:
            return Rows.none(), None
        past = np.flatnonzero(delivery.alive & (delivery.deadline_ms <= now_ms))
        rows = self._remove(DeliveryPart(delivery, past))
        live = self._live(delivery)
        if not len(live):
            self._drop(delivery_id)
            return rows, None
        return rows, int(delivery.deadline_ms[live].min())

    def by_consumer(self) -> dict[int, int]:
        """Return how many messages each consumer has in flight, by consumer id; O(in flight)."""
        held: dict[int, int] = {}
        for delivery in self._deliveries.values():
            count = held.get(delivery.consumer_id, 0) + len(self._live(delivery))
            held[delivery.consumer_id] = count
        return held

    def rows(self) -> Rows:
        """Return a copy of all rows in flight, in no order."""
        return Rows.concat([self._open(delivery) for delivery in self._deliveries.values()])

    def parted_rows(self) -> tuple[Rows, Rows]:
        """Return a copy of all rows in flight: those of recorded deliveries, and the others."""
        parts: dict[bool, list[Rows]] = {True: [], False: []}
        for delivery in self._deliveries.values():
            parts[delivery.recorded].append(self._open(delivery))
        return Rows.concat(parts[True]), Rows.concat(parts[False])

    def _open(self, delivery: Delivery) -> Rows:
        """Return a copy of the rows of a delivery that are in flight."""
        return delivery.rows.pick(self._live(delivery))

    @property
    def _all_live(self) -> bool:
        """Whether every row marked alive is in flight."""
        return self._alive == len(self.offsets)

    def _live(self, delivery: Delivery) -> Int64s:
        """Return the positions of a delivery's rows that are in flight; ascending."""
        live = np.flatnonzero(delivery.alive)
        if self._all_live:
            return live
        return live[self.offsets.contains(delivery.rows.offsets[live])]

    def _kill(self, part: DeliveryPart) -> None:
        """Kill live rows. Their offsets stay in the set."""
        delivery, at = part
        self._forget(delivery)
        delivery.alive[at] = False
        self._expect(delivery)
        self._alive -= part.height

    def _remove(self, part: DeliveryPart) -> Rows:
        """Kill live rows, and take those in flight out of the set; return the rows taken out."""
        rows, all_live = part.rows, self._all_live
        self._kill(part)
        if not all_live:
            rows = rows.pick(self.offsets.contains(rows.offsets))
        self.offsets.discard(rows.offsets)
        return rows

    def _forget(self, delivery: Delivery) -> None:
        """Forget the offset of a delivery that was expected to be acknowledged next."""
        following = delivery.next_offset
        if following is not None and self._coming.get(following) is delivery:
            del self._coming[following]

    def _drop(self, delivery_id: int) -> None:
        delivery = self._deliveries.pop(delivery_id)
        self._forget(delivery)
        self._rows -= delivery.rows.height
        self._alive -= int(np.count_nonzero(delivery.alive))

    def _sweep(self) -> None:
        """Drop finished deliveries and kill all rows not in flight, if there are many such rows."""
        if self._rows - len(self.offsets) <= max(_SWEEP_ROWS, len(self.offsets)):
            return
        for delivery_id, delivery in list(self._deliveries.items()):
            live = self._live(delivery)
            if not len(live):
                self._drop(delivery_id)
            elif len(live) < np.count_nonzero(delivery.alive):
                gone = delivery.alive.copy()
                gone[live] = False
                self._kill(DeliveryPart(delivery, np.flatnonzero(gone)))
        self._delivery_lookup.tidy(self._rows)

    def _check(self) -> None:
        """Assert that every offset has exactly one row in flight, and that the counts are right."""
        rows = self.rows()
        assert rows.height == len(self.offsets), "rows and set disagree"
        assert len(np.unique(rows.offsets)) == rows.height, "a message has two live rows"
        assert self._rows == sum(d.rows.height for d in self._deliveries.values())
        assert self._alive == sum(np.count_nonzero(d.alive) for d in self._deliveries.values())
        expected = {d.next_offset: d for d in self._deliveries.values()}
        assert all(expected.get(offset) is d for offset, d in self._coming.items())
