"""Each message that was acknowledged in a transaction has taken effect once (invariant 3).

A consumer writes its effect in the transaction that acknowledges the message (``sql.ack``). Both
are named by the subscription and the offset of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set

Course = tuple[str, int]  # a subscription and an offset


def wrong_effects(acked: Set[Course], effects: Counter[Course]) -> Iterator[str]:
    """Find messages that took effect several times, and effects without an acknowledgement."""
    for (name, offset), times in effects.items():
        if times > 1:
            yield f"again (3): offset {offset} of {name} took effect {times} times"
        if (name, offset) not in acked:
            yield f"mixed (1): offset {offset} of {name} took effect and is not acknowledged"
    for name, offset in sorted(acked - effects.keys()):
        yield f"lost (1): offset {offset} of {name} is acknowledged and took no effect"
