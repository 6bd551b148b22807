"""The bounds of a producer's batches, and of its messages without a receipt (*in flight*)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from escapement.errors import InvalidRequest
from escapement.protocol import limits

# How many bytes to leave for the header of an encoded batch, which is shorter than this.
_BODY_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one producer, as the application chose them in ``Broker.producer``."""

    linger_s: float
    batch_messages: int
    batch_bytes: int
    in_flight_messages: int
    in_flight_bytes: int
    send_timeout_s: float
    # The size of the largest message that may be sent. A message larger than ``batch_bytes`` is
    # sent as a batch of its own.
    message_bytes: int = limits.MAX_FRAME_BYTES
    replaces: bool = True  # whether the broker knows replace keys

    def within(self, broker: Mapping[str, Any]) -> Bounds:
        """Return these bounds, lowered where the broker's limits are lower.

        Args:
          broker: the limits that the broker announced, by name.

        Raises:
          InvalidRequest: if a bound is below 1, so that nothing could ever be sent.
        """
        batch = min(self.batch_messages, self.batch_bytes)
        if min(batch, self.in_flight_messages, self.in_flight_bytes) < 1:
            raise InvalidRequest("bounds of batches and in-flight messages must be at least 1")
        largest_bytes = min(
            _limit(broker, limits.LIMIT_BATCH_BYTES, limits.MAX_FRAME_BYTES) - _BODY_BYTES,
            _limit(broker, limits.LIMIT_FRAME_BYTES, limits.MAX_FRAME_BYTES) // 2,
        )
        most = _limit(broker, limits.LIMIT_BATCH_MESSAGES, limits.MAX_BATCH_MESSAGES)
        return replace(
            self,
            batch_messages=min(self.batch_messages, most),
            batch_bytes=min(self.batch_bytes, largest_bytes),
            message_bytes=largest_bytes,
            replaces=limits.LIMIT_REPLACE_KEYS in broker,
        )


def _limit(broker: Mapping[str, Any], name: str, ceiling: int) -> int:
    given = broker.get(name, ceiling)
    return min(given, ceiling) if isinstance(given, int) and given > 0 else ceiling
