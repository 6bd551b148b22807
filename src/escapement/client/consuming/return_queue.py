"""The return queue: messages that a consumer gives back to the broker, until the client sends them.

A *nack* (negative acknowledgement) reports that processing failed. A *reject* reports that it can
never succeed. A *release* returns a message without counting the delivery as an attempt. They name
messages by offset. Nacks and releases have a delay after which the broker redelivers the messages.
Rejects may have a detail: why, in a few words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.protocol.commands import Nack, Reject, Release
from escapement.protocol.limits import MAX_ACK_ROWS, MAX_DETAIL_CHARS

ReturnKind = type[Nack] | type[Reject] | type[Release]

# The delay of a nack for which the subscription's back-off decides when to redeliver.
BACK_OFF: Final = -1


def check_detail(detail: str) -> str:
    """Return the detail of a reject. Raise ``InvalidRequest`` if it cannot be sent."""
    if not isinstance(detail, str):
        raise InvalidRequest(f"The detail must be a str, not {type(detail).__name__}.")
    if len(detail) > MAX_DETAIL_CHARS:
        raise InvalidRequest(
            f"The detail may have at most {MAX_DETAIL_CHARS} characters, not {len(detail)}."
        )
    try:
        detail.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"The detail is not a valid text: {error}.") from None
    return detail


class ReturnQueue:
    """What is to be sent: one column of offsets per command, delay and detail."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[tuple[ReturnKind, int, str], list[Int64s]] = {}

    def add(self, kind: ReturnKind, offsets: Int64s, delay_ms: int, detail: str = "") -> None:
        """Queue the nack, reject or release of messages.

        Args:
          kind: the command to send, ``Nack``, ``Reject`` or ``Release``.
          offsets: the offsets of the messages.
          delay_ms: when to redeliver them; ``BACK_OFF`` selects the subscription's back-off.
            ``Reject`` has no delay.
          detail: that of a ``Reject``.
        """
        self._columns.setdefault((kind, delay_ms, detail), []).append(offsets)

    def take(self) -> Iterator[tuple[ReturnKind, Int64s, int, str]]:
        """Remove all that is queued, and yield it as commands to send.

        Each is a tuple of the kind of command, a column of offsets that fits a frame, the delay in
        milliseconds, and the detail.
        """
        columns, self._columns = self._columns, {}
        for (kind, delay_ms, detail), parts in columns.items():
            offsets = np.concatenate(parts)
            for low in range(0, len(offsets), MAX_ACK_ROWS):
                yield kind, offsets[low : low + MAX_ACK_ROWS], delay_ms, detail

    def clear(self) -> None:
        """Discard all that is queued, because the broker redelivers the messages anyway.

        It does so when the connection is lost, and after a seek.
        """
        self._columns.clear()
