"""Groups: the follow-up of a closed group comes once, and when all its messages are finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import Arrival, History, Message, in_order


@dataclass
class Group:
    """One group, its messages, and the number of its follow-up."""

    name: str
    members: list[Message] = field(default_factory=list)
    follow_up: int = -1  # -1: the group is not closed
    closed: bool = False  # the broker has answered


@dataclass
class GroupCheck:
    """Each closed group is complete exactly once.

    The follow-ups are messages of another topic. So the rules for all messages find doubled ones.
    """

    subscription: str
    groups: list[Group] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield closed groups without a follow-up."""
        came = {arrival.number for arrival in history.arrivals}
        for group in self.groups:
            if group.closed and group.follow_up not in came:
                yield f"the follow-up {group.follow_up} of {group.name} has not come"

    def violations(self, history: History) -> Iterator[str]:
        """Yield follow-ups that came too early."""
        yield from self.found
        firsts: dict[int, Arrival] = {}
        for arrival in in_order(history.arrivals):
            firsts.setdefault(arrival.number, arrival)
        for group in self.groups:
            if (first := firsts.get(group.follow_up)) is None:
                continue
            for member in group.members:
                acks_s = history.acks_s(self.subscription, member.offset)
                if min(acks_s, default=first.sent_s + 1) > first.sent_s:
                    yield f"group: {group.name} was complete before message {member.number}"
