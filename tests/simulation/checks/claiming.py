"""Claims: an exclusive consumer claims all messages, and one with a key range those of its keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from escapement import slot_of
from histories.history import Arrival, Consumer, History, Way
from simulation.checks.terms import Terms
from simulation.clocks import HOUR_S

AUTO: Final = "auto"
ALL: Final = "all"
# A consumer claims the slots from the first to the last one, or a share of the others, or all
# messages. None: it gets the slots that no other consumer claims.
Claim = tuple[int, int] | str | None
# A message can be on its way to a consumer for this time, while the disk is slow.
_ON_ITS_WAY_S: Final = 600.0
# A connection that was lost may still count, until its broker notices that or continues.
_LINGERS_S: Final = 48 * HOUR_S
_NEVER_S: Final = float("inf")
# Beginnings and ends.
Times = list[tuple[float, float]]


@dataclass(eq=False)
class Stay:
    """One consumer. It joins again after a lost connection, until its client closes it."""

    subscription: str
    claim: Claim
    asked_s: float
    asked_again_s: list[float] = field(default_factory=list)  # on a new connection
    # The connections on which a broker let it in, and when.
    joins: list[tuple[float, Way]] = field(default_factory=list)
    consumer: Consumer | None = None
    closed_s: float = _NEVER_S
    confirmed: bool = False  # whether the last broker has answered that it is closed

    def overlaps(self, other: Stay) -> bool:
        """Return whether only one of two claims can be held."""
        if self.subscription != other.subscription:
            return False
        if isinstance(self.claim, tuple) and isinstance(other.claim, tuple):
            return self.claim[0] <= other.claim[1] and other.claim[0] <= self.claim[1]
        return self.claim == other.claim == ALL

    def precedes(self, other: Stay, slot: int) -> bool:
        """Return whether it gets the messages of a slot rather than another consumer."""
        if isinstance(self.claim, tuple):
            return self.claim[0] <= slot <= self.claim[1]
        return self.claim == AUTO and other.claim is None

    def requests(self, since_s: float) -> int:
        """Return on how many connections it has asked to join since a time."""
        return sum(at_s >= since_s for at_s in (self.asked_s, *self.asked_again_s))

    def may_hold(self, began_s: float, from_s: float, to_s: float) -> bool:
        """Return whether the owner of a term may have this consumer at some time between two.

        Args:
          began_s: the beginning of the term. The owner knows only those who asked since then.
        """
        requests = self.requests(began_s)
        # The client may also have asked again before it was let in for the first time.
        all_known = bool(self.joins) or self.confirmed
        if self.asked_s > to_s or (all_known and not requests):
            return False
        is_sure = self.confirmed and requests == 1
        return self.closed_s + (0.0 if is_sure else _LINGERS_S) >= from_s


@dataclass
class ClaimCheck:
    """Claims of one topic that overlap are never held together, and they divide the messages.

    Args:
      terms: those of the topic's bundle. A take-over ends all claims, until consumers join again.
    """

    terms: Terms
    stays: list[Stay] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def refused(self, stay: Stay, process: Hashable, now_s: float) -> None:
        """Note that a process refused the first request of a consumer."""
        if process != self.terms.owner(now_s) or self.terms.end_s(stay.asked_s) <= now_s:
            return  # it may have been that of an earlier owner
        began_s = self.terms.began_at_s(now_s)
        others = [one for one in self.stays if one is not stay and one.overlaps(stay)]
        if not any(one.may_hold(began_s, stay.asked_s, now_s) for one in others):
            self.found.append(
                f"claim: {stay.subscription} refused {stay.claim} at {now_s:.0f} s, which no"
                " consumer had"
            )

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield claims that were wrongly granted or refused, and messages at wrong consumers."""
        yield from self.found
        holds = {stay: list(self._holds(stay)) for stay in self.stays}
        for one, other in combinations(self.stays, 2):
            if one.overlaps(other) and _meet(holds[one], holds[other]):
                yield f"claim: {one.subscription} let in {one.claim} and {other.claim} together"
        stay_of = {stay.consumer: stay for stay in self.stays if stay.consumer is not None}
        for name in sorted({stay.subscription for stay in self.stays}):
            owned, stale = self.terms.divide(
                one for one in history.arrivals if one.subscription == name
            )
            for arrival in stale:
                yield f"claim: {arrival} was sent by an earlier owner"
            for arrivals in owned:
                for arrival in arrivals:
                    yield from self._misled(holds, stay_of, arrival)
                yield from self._moved(holds, stay_of, arrivals)

    def _holds(self, stay: Stay) -> Iterator[tuple[float, float]]:
        """Yield the times at which the owner of the topic surely has a consumer."""
        left_s = stay.closed_s
        if stay.consumer is not None and stay.consumer.left_s is not None:
            left_s = stay.consumer.left_s
        for at_s, way in stay.joins:
            if way.process != self.terms.owner(at_s):
                continue  # that of an earlier owner
            ended_s = way.connection.ended_s
            end_s = min(left_s, self.terms.end_s(at_s), _NEVER_S if ended_s is None else ended_s)
            yield at_s, end_s

    def _misled(
        self,
        holds: dict[Stay, Times],
        stay_of: dict[Consumer, Stay],
        arrival: Arrival,
    ) -> Iterator[str]:
        """Yield a delivery to a consumer although another one has claimed the key."""
        stay = stay_of[arrival.consumer]
        if not arrival.key or stay.claim == ALL:
            return
        slot = slot_of(arrival.key)
        if isinstance(stay.claim, tuple):
            if not stay.claim[0] <= slot <= stay.claim[1]:
                yield f"claim: {arrival} of slot {slot} came to {stay.claim}"
            return
        for other in self.stays:
            if other.subscription != stay.subscription or not other.precedes(stay, slot):
                continue
            if _covers(holds[other], arrival.sent_s - _ON_ITS_WAY_S, arrival.sent_s):
                yield f"claim: {arrival} of slot {slot} came to {stay.claim}, not {other.claim}"

    def _moved(
        self,
        holds: dict[Stay, Times],
        stay_of: dict[Consumer, Stay],
        arrivals: list[Arrival],
    ) -> Iterator[str]:
        """Yield deliveries of a slot to another consumer, although no consumer came or went."""
        slots: dict[int, list[Arrival]] = defaultdict(list)
        for arrival in arrivals:
            if arrival.key and stay_of[arrival.consumer].claim == AUTO:
                slots[slot_of(arrival.key)].append(arrival)
        for earlier, later in (pair for one in slots.values() for pair in pairwise(one)):
            if earlier.consumer is later.consumer:
                continue
            from_s, to_s = earlier.sent_s - _ON_ITS_WAY_S, later.sent_s
            began_s = self.terms.began_at_s(to_s)
            if all(
                one.subscription != later.subscription
                or not one.may_hold(began_s, from_s, to_s)
                or (one.requests(began_s) == 1 and _covers(holds[one], from_s, to_s))
                for one in self.stays
            ):
                yield f"claim: {later} came to another consumer than {earlier}"


def _meet(some: Times, others: Times) -> bool:
    """Return whether a time of one list overlaps one of the other."""
    return any(a < d and c < b for a, b in some for c, d in others)


def _covers(times: Times, from_s: float, to_s: float) -> bool:
    """Return whether one of these times includes another."""
    return any(began_s < from_s and to_s < ended_s for began_s, ended_s in times)
