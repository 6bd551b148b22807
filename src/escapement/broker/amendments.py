"""What was changed of a topic's messages after they were published.

A *cancelled* message goes to no subscription that has not been handed it, ever. The set is
one of offsets, kept like a cursor: durable in the journal and in chunks, under the negative
id of its topic (``cancellations_id``). As with an acknowledgement, ``cancel`` takes effect at
once, and ``undurable`` remembers what of it is not committed yet, because until then the
index must keep the message.

Nothing is taken out of wheels and windows for it: everybody who takes keys in, wherever
they come from, asks ``standing`` which of them may still go out. So a window or a scan that
is being read meanwhile needs no care, and cancelling costs by what is cancelled, not by
what is pending.

Pure: no clock, no I/O. It does not know subscriptions; they and their topic ask it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from escapement.message import Int64s
from escapement.storage.offsets import OffsetSet

Bools = npt.NDArray[np.bool_]


def cancellations_id(topic_id: int) -> int:
    """Under which id the cancelled messages of a topic stand where acknowledgements stand."""
    return -topic_id


class Amendments:
    """See the module's docstring. A topic without any costs nothing."""

    __slots__ = ("cancelled", "undurable")

    def __init__(self) -> None:
        self.cancelled = OffsetSet()
        self.undurable = OffsetSet()

    def standing(self, offsets: Int64s) -> Bools | None:
        """Which of these may be taken to be handed out; bool[n], or None for all."""
        if not len(self.cancelled) or not self.cancelled.intersects(offsets):
            return None
        return ~self.cancelled.contains(offsets)

    # -- cancelling ----------------------------------------------------------------

    def cancel(self, offsets: Int64s) -> None:
        """From now on these go to nobody new."""
        self.cancelled.add(offsets)
        self.undurable.add(offsets)

    def cancel_committed(self, offsets: Int64s) -> None:
        """These cancellations are durable."""
        self.undurable.discard(offsets)

    def durably_cancelled(self, offsets: Int64s) -> Bools | None:
        """Which of these are cancelled for good; bool[n], or None for none."""
        if not len(self.cancelled):
            return None
        gone = self.cancelled.contains(offsets)
        if len(self.undurable):
            gone &= ~self.undurable.contains(offsets)
        return gone if gone.any() else None
