"""The subscription of a message table.

It is a shared subscription whose durable state is in the rows of the table. An acknowledgement is
written into its row. The time of the next attempt is written right before a message is sent
(``claim.py``). So a message that is given back, and sent again at once, needs no write. A message
that is given back for later does.

A message is *forgotten* when its row is gone or was changed by SQL. Its offset then counts as
acknowledged, so whatever still has the offset, such as the timing wheel, leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from escapement.broker.subscription.dead_letters.dead_letter import Reason
from escapement.broker.subscription.delivery.attempt_book import counted
from escapement.broker.subscription.delivery.consumer import Consumer
from escapement.broker.subscription.delivery.hand_over import HandOver
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.shared import SharedSubscription
from escapement.broker.subscription.subscription import Environment
from escapement.broker.tables.claim import Outcome, Sending
from escapement.message import Int64s
from escapement.storage.catalog.catalog import SubscriptionRecord
from escapement.storage.commit.items import Attempts
from escapement.storage.index import KEY_MIN
from escapement.storage.offsets import OffsetSet

# The name of the only subscription of each table.
SUBSCRIPTION: Final = "table"
# When a message that could not be claimed is tried again, the first time and after many times.
_BUSY_MS: Final = 50
_LONGEST_BUSY_MS: Final = 1_000
# A claim that fails because a whole table is locked may take a second. The pause after it is this
# many times as long, so that such claims leave the connection to other tables most of the time.
_SLOW_FAILURE: Final = 4


class TableSubscription(SharedSubscription):
    """The subscription of one table.

    Args:
      clock_ms: returns the time in milliseconds.
      on_forgotten: called with the offsets of messages that are forgotten.
    """

    def __init__(
        self,
        record: SubscriptionRecord,
        environment: Environment,
        clock_ms: Callable[[], int],
        on_forgotten: Callable[[Int64s], None],
    ) -> None:
        super().__init__(record, environment, clock_ms(), KEY_MIN)
        self._clock_ms = clock_ms
        self._on_forgotten = on_forgotten
        self._lost = OffsetSet()  # of the last claims
        self._refused: dict[int, int] = {}  # of the last claims: when to try each offset again
        self._busy_ms = _BUSY_MS

    @property
    def scatters(self) -> bool:
        return False  # a claim reads messages by their ids, so nothing is gained by reading ahead

    # -- messages come and go ----------------------------------------------------------

    def take_tried(self, rows: Rows, next_ms: Int64s, now_ms: int) -> None:
        """Hold messages that were sent before, and send each again from ``next_ms`` on."""
        self.held.add(rows.offsets)
        self._retry(rows, next_ms, now_ms, waited=True)

    def forget(self, offsets: Int64s) -> None:
        """Forget messages that are not in flight."""
        if self.held.discard(offsets):
            self._forget_ready(offsets)
        self.acked.add(offsets)
        self._on_forgotten(offsets)

    # -- sending -------------------------------------------------------------------------

    def sending(self, offsets: Int64s) -> Sending:
        """Return how messages that are in flight were delivered, in the given order."""
        return Sending(*self.in_flight.terms(offsets))

    def claimed(self, outcome: Outcome) -> None:
        """Note which messages of a claim are lost or refused. ``await_fill`` follows."""
        if len(outcome.lost):
            self._lost.add(outcome.lost)
        self._refused.update(
            zip(outcome.refused.tolist(), outcome.refused_ms.tolist(), strict=True)
        )
        # A long transaction of an application may have locked all rows that are left.
        if outcome.is_stuck:
            longer_ms = min(2 * self._busy_ms, _LONGEST_BUSY_MS)
            self._busy_ms = max(longer_ms, int(1000 * _SLOW_FAILURE * outcome.took_s))
        else:
            self._busy_ms = _BUSY_MS

    def await_fill(self, offsets: Int64s) -> None:
        """Take back messages that were put in flight and were not claimed."""
        rows = self.in_flight.take_back(offsets)
        lost = self._lost.contains(rows.offsets)
        self._lost.discard(offsets)
        if lost.any():
            self.forget(rows.offsets[lost])
            rows = rows.pick(~lost)
        now_ms = self._clock_ms()
        if self._refused:
            next_ms = {offset: self._refused.pop(offset, 0) for offset in offsets.tolist()}
            waits_ms = np.array([next_ms[offset] for offset in rows.offsets.tolist()], np.int64)
            refused = waits_ms > 0
            self._wait(rows.pick(refused), waits_ms[refused], now_ms)
            rows = rows.pick(~refused)
        if rows.height:
            again = rows._replace(attempts=rows.attempts - 1)
            self._wait(again, np.full(rows.height, now_ms + self._busy_ms), now_ms)

    def note_sent(self, hand: HandOver) -> None:
        self.in_flight.note_sent(hand.delivery_id, recorded=True)

    # -- giving back -----------------------------------------------------------------------

    def _return(
        self, rows: Rows, next_ms: Int64s, now_ms: int, reason: Reason | None, detail: str = ""
    ) -> None:
        if not rows.height:
            return
        rows = counted(rows)
        later = next_ms > now_ms
        if later.any():
            self._write(rows.pick(later), next_ms[later])
        self._wait(rows, next_ms, now_ms)

    def extend(self, consumer: Consumer, offsets: Int64s, wait_ms: int, now_ms: int) -> int:
        count = super().extend(consumer, offsets, wait_ms, now_ms)
        rows = counted(self.in_flight.find(offsets, consumer.id))
        if rows.height:
            self._write(rows, self.sending(rows.offsets).deadline_ms)
        return count

    def stop(self, now_ms: int) -> None:
        rows = counted(self.in_flight.rows())
        if rows.height:
            self._write(rows, np.full(rows.height, now_ms))
        super().stop(now_ms)

    def _write(self, rows: Rows, next_ms: Int64s) -> None:
        """Write attempts and the times of the next ones into the table."""
        id, topic_id = self.record.id, self.record.topic_id
        self._submit(Attempts(topic_id, id, rows.offsets, rows.counts, next_ms, rows.due_ms))
