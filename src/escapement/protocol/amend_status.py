"""The statuses by which a broker answers a request to cancel or reschedule messages."""

from __future__ import annotations

from enum import IntEnum


class AmendStatus(IntEnum):
    """The effect of a request to cancel or reschedule on one message.

    - ``UNKNOWN``: the topic has no such message.
    - ``DONE``: the message was changed for every subscription to which it had not been delivered.
    - ``DELIVERED``: the message had been delivered to every subscription that gets it. Nothing was
      changed.
    - ``CANCELLED``: the message was cancelled before, and rescheduling does not restore it.
    - ``OVER``: no subscription will receive the message, and some may never have received it,
      because it expired, was dropped, or is no longer in the log. Nothing was changed.
    """

    UNKNOWN = 0
    DONE = 1
    DELIVERED = 2
    CANCELLED = 3
    OVER = 4
