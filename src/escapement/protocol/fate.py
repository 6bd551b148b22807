"""What becomes of a message that somebody wants to change."""

from __future__ import annotations

from enum import IntEnum


class Fate(IntEnum):
    """One byte for each message on the wire."""

    UNKNOWN = 0  # the topic has no such message
    DONE = 1  # it was changed for every subscription that had not been handed it
    DELIVERED = 2  # every subscription that is to get it had been handed it: nothing was changed
    CANCELLED = 3  # it is cancelled, and stays so whatever time it is given
    # No subscription is to get it any more, and not all are known to have been handed it: it
    # expired or was dropped, or the log has forgotten it. Nothing was changed.
    OVER = 4
