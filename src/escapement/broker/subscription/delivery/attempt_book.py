"""The attempts that a subscription remembers across a restart: how many, and when the next is due.

The book learns of attempts in two ways. A message that a consumer gives back is *stated*, with the
time of its next attempt. A message that was sent to a consumer and stays there is *recorded* while
it is in flight (Q2). Both go into the next group commit. A checkpoint takes the attempts that the
book has learned since the last checkpoint. Now and then it takes all attempts.

While a broker starts, stored attempts are *recovered* piece by piece. When all are recovered, the
subscription takes them.

The book reads the in-flight messages and the retries, and changes neither. Pure: time arrives as an
argument. V4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.delivery.in_flight import InFlight
from escapement.broker.subscription.priorities.ready import Rows
from escapement.broker.subscription.retries.retries import Retries
from escapement.message import Int64s
from escapement.storage.commit.items import Attempts
from escapement.storage.encoding.attempts import MOST_ATTEMPTS, AttemptTable, last_stated
from escapement.storage.offsets import OffsetSet


class AttemptBook:
    """The attempts of one subscription."""

    __slots__ = (
        "_amendments",
        "_in_flight",
        "_recovered",
        "_retries",
        "_stated",
        "_submit",
        "_subscription_id",
        "_topic_id",
    )

    def __init__(
        self,
        topic_id: int,
        subscription_id: int,
        submit: Callable[[Attempts], None],
        in_flight: InFlight,
        retries: Retries,
        amendments: Amendments,
    ) -> None:
        """Create an empty book.

        Args:
          submit: passes attempts to the next group commit.
          amendments: which messages of the topic were cancelled or moved to another due time.
        """
        self._topic_id = topic_id
        self._subscription_id = subscription_id
        self._submit = submit
        self._in_flight = in_flight
        self._retries = retries
        self._amendments = amendments
        self._stated: list[tuple[Rows, Int64s]] = []  # since the last checkpoint
        self._recovered: list[tuple[Rows, Int64s]] = []

    # -- live ------------------------------------------------------------------------

    def state(self, rows: Rows, next_ms: Int64s) -> None:
        """State that these messages were tried, and when each is tried again.

        A later statement about a message replaces the earlier ones.

        Args:
          next_ms: the time of the next attempt, or the due time of a message that need not wait for
            a back-off; int64[n].
        """
        self._stated.append((rows, next_ms))
        self._hand_in(rows, next_ms)

    def keep(self, offsets: Int64s) -> None:
        """Record that messages were delivered, before they are cancelled or moved.

        This subscription then keeps them as they are, also after a crash. Messages that are not in
        flight are ignored, because their deliveries were stated already.
        """
        rows = counted(self._in_flight.find(offsets))
        if rows.height:
            self.state(rows, rows.due_ms)

    def record_sent(self, now_ms: int, after_ms: int) -> bool:
        """Record messages that were sent at least ``after_ms`` ago and are still in flight. Q2.

        Returns whether to call again, because some messages were sent more recently.
        """
        rows = self._in_flight.take_unrecorded(now_ms, after_ms)
        if rows.height:
            self._hand_in(counted(rows), rows.due_ms)
        return self._in_flight.has_unrecorded

    def _hand_in(self, rows: Rows, next_ms: Int64s) -> None:
        """Add these attempts to the next group commit."""
        self._submit(
            Attempts(
                self._topic_id,
                self._subscription_id,
                rows.offsets,
                rows.to_store(),
                next_ms,
                rows.due_ms,
            )
        )

    # -- checkpoints -----------------------------------------------------------------

    @property
    def has_new(self) -> bool:
        """Whether there are attempts that no checkpoint has taken yet."""
        return bool(self._stated) or self._in_flight.has_unstored

    @property
    def is_used(self) -> bool:
        """Whether there are attempts that no checkpoint or ``take_recovered`` has taken yet."""
        return self.has_new or bool(self._recovered)

    def take_new(self) -> AttemptTable:
        """Return the attempts learned since the last checkpoint.

        If a message is in the table several times, its last row counts. Some of the messages may
        have been acknowledged since.
        """
        stated, self._stated = self._stated, []
        rows, next_ms = _concat(stated)
        held = counted(self._in_flight.take_unstored())
        return _table(Rows.concat([rows, held]), np.concatenate((next_ms, held.due_ms)))

    def take_all(self, others: Rows, now_ms: int) -> AttemptTable:
        """Return the attempts of all pending messages that were tried, for a checkpoint.

        Some of the messages may have been acknowledged while they were in retry.

        Args:
          others: messages that may have been tried, and are neither in flight nor in retry.
        """
        self._stated = []
        self._in_flight.take_unstored()
        waiting, next_ms = self._retries.waiting()
        recorded, flying = self._in_flight.parted_rows()
        # An in-flight delivery that was not recorded does not count yet, unless ``keep`` recorded
        # it because the message was cancelled or moved.
        kept = self._amendments.changed(flying.offsets)
        flying = counted(flying._replace(attempts=flying.attempts - ~kept))
        flying = Rows.concat([counted(recorded), flying])
        # A message that was not tried has no time of a next attempt.
        others_ms = np.where(others.counts > 0, now_ms, others.due_ms)
        next_ms = np.concatenate((next_ms, flying.due_ms, others_ms))
        rows = Rows.concat([waiting, flying, others])
        tried = rows.attempts > 0
        return _table(rows.pick(tried), next_ms[tried])

    # -- a start ---------------------------------------------------------------------

    def recover(self, rows: Rows, next_ms: Int64s, *, stored: bool) -> None:
        """Add attempts that were read from the database during a start.

        Args:
          next_ms: the time of each message's next attempt; int64[n].
          stored: whether a checkpoint has them. If only the journal has them, the next checkpoint
            must write them.
        """
        self._recovered.append((rows, next_ms))
        if not stored:
            self._stated.append((rows, next_ms))

    def take_recovered(self, done: OffsetSet) -> tuple[Rows, Int64s]:
        """Remove all recovered attempts; return the last ones of each message and their next times.

        Args:
          done: the acknowledged messages, which are left out.
        """
        recovered, self._recovered = self._recovered, []
        rows, next_ms = _concat(recovered)
        at = last_stated(rows.offsets)
        at = at[~done.contains(rows.offsets[at])]
        return rows.pick(at), next_ms[at]

    def has_recovered(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Return which messages have recovered attempts that were not taken yet; bool[n]."""
        found = np.zeros(len(offsets), bool)
        for rows, _ in self._recovered:
            found |= np.isin(offsets, rows.offsets)
        return found


def counted(rows: Rows) -> Rows:
    """Return the rows with their numbers of attempts limited to ``MOST_ATTEMPTS``."""
    return rows._replace(attempts=rows.attempts - (rows.counts > MOST_ATTEMPTS))


def _table(rows: Rows, next_ms: Int64s) -> AttemptTable:
    return AttemptTable(rows.offsets, rows.to_store(), next_ms, rows.due_ms)


def _concat(parts: list[tuple[Rows, Int64s]]) -> tuple[Rows, Int64s]:
    next_ms = np.concatenate([np.zeros(0, np.int64), *(next_ms for _, next_ms in parts)])
    return Rows.concat([rows for rows, _ in parts]), next_ms
