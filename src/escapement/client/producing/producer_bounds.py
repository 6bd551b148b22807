"""The bounds of a producer's batches and in-flight messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from escapement.errors import InvalidRequest
from escapement.protocol import limits

# More than the size of a body's header.
_BODY_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds that the user chose; ``within`` applies the limits of the broker."""

    linger_s: float
    batch_messages: int
    batch_bytes: int
    in_flight_messages: int
    in_flight_bytes: int
    send_timeout_s: float
    # The largest single message. A message over ``batch_bytes`` is sent alone.
    message_bytes: int = limits.MAX_FRAME_BYTES

    def within(self, broker: Mapping[str, Any]) -> Bounds:
        """Return these bounds, lowered to the limits of a broker.

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
        )


def _limit(broker: Mapping[str, Any], name: str, ceiling: int) -> int:
    given = broker.get(name, ceiling)
    return min(given, ceiling) if isinstance(given, int) and given > 0 else ceiling
