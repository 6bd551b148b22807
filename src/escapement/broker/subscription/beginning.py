"""Where a subscription begins, as its record says it. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from escapement.errors import InvalidRequest
from escapement.position import Position
from escapement.storage.catalog import Kind

# Later than any message is due: of the earlier offsets nothing is wanted.
NEVER_MS: Final = 1 << 62


class Beginning(NamedTuple):
    """The fields of a ``SubscriptionRecord`` that say what it wants.

    Messages from ``start_offset`` on, and of the earlier ones those due from
    ``start_due_ms`` on; what of ``[fill_from, fill_until)`` is due already may have to be
    read from the log again.
    """

    start_offset: int
    start_due_ms: int
    fill_from: int
    fill_until: int


def beginning(
    kind: Kind, position: Position, end_offset: int, now_ms: int, forgotten_until_ms: int = 0
) -> Beginning:
    """What a subscription that begins at ``position`` wants.

    Args:
      position: of an exclusive or failover subscription no time: its offset in the log.
      end_offset: where the topic's log ends now. What is published later is wanted, and
        what lies before and is due later is in the index already: neither is filled in.
      forgotten_until_ms: what is due by then need not be there, though it is later than now:
        the clock was set back.

    Raises:
      InvalidRequest: for an offset past the log's end.
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
                    f"there is no offset {position.value} to begin at yet: the next is {end_offset}"
                )
            if not shared:
                return Beginning(position.value, 0, 0, 0)
            return Beginning(position.value, NEVER_MS, position.value, end_offset)
        case "time":
            assert shared, "the log's order has no times: look the offset up first"
            past = position.value <= max(now_ms, forgotten_until_ms)
            return Beginning(end_offset, position.value, 0, end_offset if past else 0)
