"""Terms: the times from one take of a bundle to the next. One process serves it in each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from histories.history import Arrival, in_order


@dataclass
class Terms:
    """The terms of one bundle. They do not overlap, because a lease has one owner."""

    began_s: list[float] = field(default_factory=list)  # ascending
    owners: list[Hashable] = field(default_factory=list)

    def take(self, at_s: float, process: Hashable) -> None:
        """Note that a process begins to serve the bundle."""
        self.began_s.append(at_s)
        self.owners.append(process)

    def number(self, at_s: float) -> int:
        """Return the number of the term at a time; -1 before the first one."""
        return bisect_right(self.began_s, at_s) - 1

    def owner(self, at_s: float) -> Hashable:
        """Return the process that took the bundle last; None before the first one."""
        number = self.number(at_s)
        return self.owners[number] if number >= 0 else None

    def began_at_s(self, at_s: float) -> float:
        """Return when the term at a time began; infinity before the first one."""
        number = self.number(at_s)
        return self.began_s[number] if number >= 0 else float("inf")

    def end_s(self, at_s: float) -> float:
        """Return when the term at a time ended; infinity for the last one."""
        following = self.number(at_s) + 1
        return self.began_s[following] if following < len(self.began_s) else float("inf")

    def divide(self, arrivals: Iterable[Arrival]) -> tuple[list[list[Arrival]], list[Arrival]]:
        """Return the deliveries of the owner in each term, in order, and those of stale owners."""
        owned: dict[int, list[Arrival]] = {}
        stale = []
        for arrival in in_order(arrivals):
            if arrival.sender == self.owner(arrival.sent_s):
                owned.setdefault(self.number(arrival.sent_s), []).append(arrival)
            else:
                stale.append(arrival)
        return list(owned.values()), stale
