"""The outcome of cancelling or rescheduling a message."""

from __future__ import annotations

from enum import IntEnum


class AmendStatus(IntEnum):
    """The outcome for one message, one byte on the wire."""

    UNKNOWN = 0  # the topic has no such message
    DONE = 1  # it was changed for every subscription that had not received it
    DELIVERED = 2  # every subscription it is for had received it: nothing was changed
    CANCELLED = 3  # it is cancelled, and rescheduling does not bring it back
    # No subscription will receive the message, and some may never have: it expired, was
    # dropped, or is no longer in the log. Nothing was changed.
    OVER = 4
