"""Times to live and priorities: expired messages never come, and urgent ones come first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from histories.history import Arrival, History, in_order

# A message that was stored and due for this time is ready if its broker delivers others.
_READY_S = 120.0


@dataclass
class ExpiryCheck:
    """No expired message comes, and others come by rank.

    Args:
      ageing_ms: the difference in due time that counts as much as one step of priority.
    """

    subscription: str
    ttl_ms: int
    ageing_ms: int
    priorities: dict[int, int] = field(default_factory=dict)  # of each message

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield messages that came too late, or before a more urgent one."""
        firsts: dict[Hashable, list[Arrival]] = defaultdict(list)
        came: set[int] = set()
        for arrival in in_order(history.arrivals):
            if arrival.subscription != self.subscription:
                continue
            late_ms = arrival.broker_ms - arrival.due_ms - self.ttl_ms
            if late_ms > history.sending_s * 1000:
                yield f"ttl: message {arrival.number} came {late_ms} ms after it had expired"
            if arrival.number not in came and not arrival.again:
                firsts[arrival.sender].append(arrival)
            came.add(arrival.number)
        for arrivals in firsts.values():
            yield from self._passed(history, arrivals)

    def _passed(self, history: History, arrivals: list[Arrival]) -> Iterator[str]:
        """Yield first deliveries of one broker that a more urgent ready message should precede."""
        for row, later in enumerate(arrivals):
            message = history.messages[later.number]
            known_ms = max(message.confirmed_ms, later.due_ms) - history.began_ms
            for earlier in arrivals[:row]:
                ready = known_ms / 1000 + _READY_S < earlier.sent_s < later.sent_s
                if ready and self._rank(later) < self._rank(earlier):
                    yield (
                        f"priority: message {earlier.number} came before the more urgent"
                        f" {later.number}"
                    )

    def _rank(self, arrival: Arrival) -> tuple[int, int]:
        steps = self.priorities[arrival.number] - 50
        return arrival.due_ms + steps * self.ageing_ms, arrival.offset
