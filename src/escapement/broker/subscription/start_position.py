"""Where a new subscription begins, as stored in its record. Pure.

A subscription gets the messages from a start offset on. A shared one also gets earlier messages
that are due from a start time on. The index may have removed some of the messages that it gets, so
the record of a shared subscription also has a range of offsets to *fill in*: the filler reads this
range of the log and adds its messages to the index again.
"""

from __future__ import annotations

from typing import Final

from escapement.errors import InvalidRequest
from escapement.position import Position
from escapement.storage.catalog.catalog import Beginning, Kind

# Later than any time, such as a due time or a deadline.
NEVER_MS: Final = 1 << 62


def beginning(
    kind: Kind, position: Position, end_offset: int, now_ms: int, forgotten_until_ms: int = 0
) -> Beginning:
    """Return the start offset, the start time and the range to fill in for a new subscription.

    Args:
      position: where the user wants the subscription to begin. It must not be a time for an
        exclusive or failover subscription; look up the offset first.
      end_offset: the end of the topic's log now; nothing behind it needs to be filled in.
      forgotten_until_ms: messages due by then may be missing in the index. It is later than now if
        the clock was set back.

    Raises:
      InvalidRequest: if the position is an offset past the end of the log.
    """
    shared = kind == "shared"
    match position.kind:
        case "latest":
            again = shared and forgotten_until_ms > now_ms
            return Beginning(end_offset, now_ms + 1, 0, end_offset if again else 0)
        case "earliest":
            return Beginning(0, 0, 0, end_offset if shared else 0)
        case "offset":
            if position.value > end_offset:
                raise InvalidRequest(
                    f"offset {position.value} does not exist yet: the next is {end_offset}; begin "
                    "there or before"
                )
            if not shared:
                return Beginning(position.value, 0, 0, 0)
            return Beginning(position.value, NEVER_MS, position.value, end_offset)
        case "time":
            assert shared, "the log's order has no times: look the offset up first"
            past = position.value <= max(now_ms, forgotten_until_ms)
            return Beginning(end_offset, position.value, 0, end_offset if past else 0)
