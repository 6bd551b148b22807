"""What must be known of a subscription's attempts after a restart: how often, and when next.

Attempts become known in two ways. What comes back from a consumer is *stated*, with the time of
its next attempt. What a consumer was sent and goes on holding is *recorded* as it lies in its
hands (Q2). Both are handed in for the next group commit at once; the next checkpoint takes what
has become known since the last, and now and then everything there is.

While a broker starts, what was stored is *recovered*, piece by piece, and then taken as a whole.

It knows what is in flight and what waits for a retry, and changes neither. Pure: time arrives as
an argument. V4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from escapement.broker.log.amendments import Amendments
from escapement.broker.subscription.inflight import InFlight
from escapement.broker.subscription.ready import Rows
from escapement.broker.subscription.retries import Retries
from escapement.message import Int64s
from escapement.storage.attempts import MOST_ATTEMPTS, AttemptTable, last_stated
from escapement.storage.commit.items import Attempts
from escapement.storage.offsets import OffsetSet


class AttemptBook:
    """See the module's docstring."""

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
        """An empty book.

        Args:
          submit: hands in what must become durable.
          amendments: of the topic's messages.
        """
        self._topic_id = topic_id
        self._subscription_id = subscription_id
        self._submit = submit
        self._in_flight = in_flight
        self._retries = retries
        self._amendments = amendments
        self._stated: list[tuple[Rows, Int64s]] = []  # what no checkpoint has taken
        self._recovered: list[tuple[Rows, Int64s]] = []

    # -- live ------------------------------------------------------------------------

    def state(self, rows: Rows, next_ms: Int64s) -> None:
        """These were tried, and are again at ``next_ms``; later statements win.

        Args:
          next_ms: what need not wait says when it was due; int64[n].
        """
        self._stated.append((rows, next_ms))
        self._hand_in(rows, next_ms)

    def keep(self, offsets: Int64s) -> None:
        """Have it on record that these were handed out, before they are changed for others.

        Of what is in retry that is so already.
        """
        rows = counted(self._in_flight.find(offsets))
        if rows.height:
            self.state(rows, rows.due_ms)

    def record_sent(self, now_ms: int, after_ms: int) -> bool:
        """Have it on record what consumers were sent and have held for ``after_ms``; Q2.

        Returns whether to ask again: something was sent later than that.
        """
        rows = self._in_flight.take_unrecorded(now_ms, after_ms)
        if rows.height:
            self._hand_in(counted(rows), rows.due_ms)
        return self._in_flight.has_unrecorded

    def _hand_in(self, rows: Rows, next_ms: Int64s) -> None:
        """Have it in the next group commit."""
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
    def has_stated(self) -> bool:
        """Whether something was stated that no checkpoint has taken."""
        return bool(self._stated)

    @property
    def has_new(self) -> bool:
        """Whether something became known that no checkpoint has taken."""
        return self.has_stated or self._in_flight.has_unstored

    @property
    def is_used(self) -> bool:
        """Whether something is in it that no checkpoint has taken, or nobody has come to yet."""
        return self.has_new or bool(self._recovered)

    def take_new(self) -> AttemptTable:
        """What became known since this was last asked; the last that is said counts.

        Among it may be some that was acknowledged since.
        """
        stated, self._stated = self._stated, []
        rows, next_ms = _concat(stated)
        held = counted(self._in_flight.take_unstored())
        return _table(Rows.concat([rows, held]), np.concatenate((next_ms, held.due_ms)))

    def take_all(self, others: Rows, now_ms: int) -> AttemptTable:
        """Every message that was tried before and is not done, and when next.

        Among them may be some that were acknowledged while they waited.

        Args:
          others: what may have been tried, and neither is in flight nor waits.
        """
        self._stated = []
        self._in_flight.take_unstored()
        waiting, next_ms = self._retries.waiting()
        recorded, flying = self._in_flight.parted_rows()
        # Of what was changed for others the journal says that it was handed out (``keep``).
        kept = self._amendments.changed(flying.offsets)
        flying = counted(flying._replace(attempts=flying.attempts - ~kept))
        flying = Rows.concat([counted(recorded), flying])
        next_ms = np.concatenate((next_ms, flying.due_ms, np.full(others.height, now_ms)))
        rows = Rows.concat([waiting, flying, others])
        tried = rows.attempts > 0
        return _table(rows.pick(tried), next_ms[tried])

    # -- a start ---------------------------------------------------------------------

    def recover(self, rows: Rows, next_ms: Int64s, *, stored: bool) -> None:
        """These were tried; ``stored``: a checkpoint has taken them, not only the journal."""
        self._recovered.append((rows, next_ms))
        if not stored:
            self._stated.append((rows, next_ms))

    def take_recovered(self, done: OffsetSet) -> tuple[Rows, Int64s]:
        """The last that was said of each message, but for those that are done."""
        recovered, self._recovered = self._recovered, []
        rows, next_ms = _concat(recovered)
        at = last_stated(rows.offsets)
        at = at[~done.contains(rows.offsets[at])]
        return rows.pick(at), next_ms[at]

    def has_recovered(self, offsets: Int64s) -> npt.NDArray[np.bool_]:
        """Which of these were recovered and not yet taken; bool[n]."""
        found = np.zeros(len(offsets), bool)
        for rows, _ in self._recovered:
            found |= np.isin(offsets, rows.offsets)
        return found


def counted(rows: Rows) -> Rows:
    """The rows with their count of attempts at its bound at most."""
    return rows._replace(attempts=rows.attempts - (rows.counts > MOST_ATTEMPTS))


def _table(rows: Rows, next_ms: Int64s) -> AttemptTable:
    return AttemptTable(rows.offsets, rows.to_store(), next_ms, rows.due_ms)


def _concat(parts: list[tuple[Rows, Int64s]]) -> tuple[Rows, Int64s]:
    next_ms = np.concatenate([np.zeros(0, np.int64), *(next_ms for _, next_ms in parts)])
    return Rows.concat([rows for rows, _ in parts]), next_ms
