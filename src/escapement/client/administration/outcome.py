"""The outcomes of cancelling or rescheduling messages.

A message that was already delivered to some subscriptions is changed only for the others. The
outcome of each message has a status, and names the subscriptions in ``handed`` (handed over):
those to which the message had been delivered before the request. After a broker has stopped
uncleanly, ``handed`` also names subscriptions to which that broker may have delivered the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from escapement.message import Bools, Int64s, MessageId
from escapement.protocol.amend_status import AmendStatus


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of cancelling or rescheduling one message.

    Attributes:
      id: the id of the message. Its offset is -1 if the request named an unknown dedup key.
      status: what happened to the message.
      handed: the names of the subscriptions to which the message had been delivered before the
        request, or may have been by a broker that stopped uncleanly. The request does not
        change the message for these subscriptions.
    """

    id: MessageId
    status: AmendStatus
    handed: tuple[str, ...] = ()

    @property
    def done(self) -> bool:
        """Whether the message was changed for all subscriptions except those in ``handed``."""
        return self.status is AmendStatus.DONE


class Outcomes:
    """The outcomes for several messages, in columns, in the order of the request.

    ``statuses`` has the value of ``AmendStatus`` for each message. ``offsets`` has the offsets of
    the messages in ``topic``, -1 for an unknown dedup key. Iterate over the outcomes, or index
    them, to get single outcomes.
    """

    __slots__ = ("_handed", "offsets", "statuses", "topic")

    def __init__(
        self,
        topic: str,
        offsets: Int64s,
        statuses: npt.NDArray[np.uint8],
        handed: Mapping[str, Bools],
    ) -> None:
        self.topic = topic
        self.offsets = offsets
        self.statuses = statuses  # values of ``AmendStatus``
        self._handed = handed

    @classmethod
    def concat(cls, topic: str, parts: Sequence[Outcomes]) -> Outcomes:
        """Join the outcomes of several requests about messages of ``topic``, in order."""
        names = sorted({name for part in parts for name in part._handed})
        return cls(
            topic,
            np.concatenate([part.offsets for part in parts]) if parts else np.zeros(0, np.int64),
            np.concatenate([part.statuses for part in parts]) if parts else np.zeros(0, np.uint8),
            {name: np.concatenate([part.handed_to(name) for part in parts]) for name in names},
        )

    def _among(self, offsets: Int64s) -> Outcomes:
        """Return these outcomes with additional ones for unknown dedup keys.

        Args:
          offsets: the offsets of all messages of the request, with -1 for each unknown dedup
            key. These outcomes belong to the offsets other than -1, in order.

        Returns:
          One outcome per offset. The status for an offset of -1 is ``UNKNOWN``.
        """
        there = offsets >= 0
        if there.all():
            return self
        statuses = np.full(len(offsets), AmendStatus.UNKNOWN, np.uint8)
        statuses[there] = self.statuses
        handed = {}
        for name, mask in self._handed.items():
            handed[name] = np.zeros(len(offsets), bool)
            handed[name][there] = mask
        return Outcomes(self.topic, offsets, statuses, handed)

    @property
    def done(self) -> Bools:
        """Whether each message was changed, for all subscriptions except those in ``handed``."""
        done: Bools = self.statuses == AmendStatus.DONE
        return done

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """The names of the subscriptions that are in ``handed`` of at least one message."""
        return tuple(self._handed)

    def handed_to(self, subscription: str) -> Bools:
        """Return for each message whether ``subscription`` is in its ``handed``; bool[n]."""
        found = self._handed.get(subscription)
        return np.zeros(len(self), bool) if found is None else found

    def __repr__(self) -> str:
        counts = np.bincount(self.statuses, minlength=len(AmendStatus)).tolist()
        what = ", ".join(
            f"{counts[status]} {status.name.lower()}" for status in AmendStatus if counts[status]
        )
        return f"<{len(self)} outcomes of {self.topic}{': ' if what else ''}{what}>"

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, row: int) -> Outcome:
        handed = tuple(name for name, mask in self._handed.items() if mask[row])
        id = MessageId(self.topic, int(self.offsets[row]))
        return Outcome(id, AmendStatus(int(self.statuses[row])), handed)

    def __iter__(self) -> Iterator[Outcome]:
        return (self[row] for row in range(len(self)))
