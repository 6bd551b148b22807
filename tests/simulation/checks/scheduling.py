"""Schedules: each occurrence is published exactly once, and not early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import NEVER_MS, History


@dataclass(slots=True)
class Change:
    """A change of a schedule, as its client asked for it.

    ``next_ms`` is the next occurrence that the answer named. Occurrences have the distance
    ``step_ms`` from it, or a multiple of it. If the schedule is paused, ``next_ms`` is the time
    after the last occurrence that was published.
    """

    step_ms: int
    is_paused: bool
    called_ms: int
    next_ms: int = NEVER_MS  # no answer yet

    def has(self, at_ms: int) -> bool:
        """Return whether there may be an occurrence at a time."""
        return self.next_ms == NEVER_MS or (at_ms - self.next_ms) % self.step_ms == 0


@dataclass
class ChangedSchedule:
    """A schedule that is paused, resumed and updated, and that publishes on demand.

    A pause takes effect after the last occurrence that its answer names. Other changes take effect
    between the call and the next occurrence that their answer names.

    Args:
      changes: all of them in order. The first is the creation.
    """

    name: str
    skew_ms: int
    changes: list[Change] = field(default_factory=list)
    found: Counter[int] = field(default_factory=Counter)
    demanded: int = 0  # messages that were published on demand
    asked: int = 0  # demands
    answered: int = 0

    def expected(self, until_ms: int) -> Iterator[int]:
        """Yield the occurrences until a time that must be published."""
        for change, after in zip(self.changes, [*self.changes[1:], None], strict=True):
            if change.is_paused:
                continue
            end_ms = until_ms
            if after is not None:
                end_ms = after.next_ms if after.is_paused else after.called_ms - self.skew_ms
            yield from range(change.next_ms, min(end_ms, until_ms), change.step_ms)

    def strange(self) -> Iterator[int]:
        """Yield the published occurrences that the schedule never had."""
        for at_ms in self.found:
            may_be = False
            for change, after in zip(self.changes, [*self.changes[1:], None], strict=True):
                ends_ms = NEVER_MS if after is None else after.next_ms
                began = change.called_ms - self.skew_ms <= at_ms < ends_ms
                may_be |= began and not change.is_paused and change.has(at_ms)
            if not may_be:
                yield at_ms


@dataclass
class Occurrences:
    """The occurrences of one schedule: every ``step_ms``, from ``from_ms`` until ``until_ms``.

    ``until_ms`` is the time of the last change that is asked for, and ``found`` has the published
    occurrences.
    """

    name: str
    step_ms: int
    from_ms: int  # when its creation was asked for, or answered if occurrences are aligned
    is_aligned: bool  # occurrences are multiples of the step
    created_by_ms: int  # when its creation was answered
    found: Counter[int] = field(default_factory=Counter)

    def expected(self, until_ms: int) -> Iterator[int]:
        """Yield the occurrences until a time."""
        first_ms = self.from_ms - self.from_ms % self.step_ms + self.step_ms
        if not self.is_aligned:  # a broker counted from its own time
            first_ms = min(self.found, default=self.from_ms + self.step_ms)
        yield from range(first_ms, until_ms, self.step_ms)


@dataclass
class ScheduleCheck:
    """No occurrence is missed, doubled, or published before its time.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    skew_ms: int
    until_ms: int = 0  # the end of all faults: earlier occurrences must be published
    schedules: list[Occurrences] = field(default_factory=list)
    changed: ChangedSchedule | None = None
    early: list[str] = field(default_factory=list)

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield occurrences until the end of all faults that are not published."""
        changed = [] if self.changed is None else [self.changed]
        for one in [*self.schedules, *changed]:
            until_ms = self.until_ms - self.skew_ms
            missed = [at_ms for at_ms in one.expected(until_ms) if at_ms not in one.found]
            if missed:
                yield f"occurrences {missed[:5]} of {one.name} were not published"
        for other in changed:
            if other.demanded < other.answered:
                yield f"{other.name} was run {other.answered} times, and ran {other.demanded} times"

    def _may_begin(self, one: Occurrences, first_ms: int) -> bool:
        """Return whether the first occurrence is one step after the creation."""
        created_ms = first_ms - one.step_ms
        return one.from_ms - self.skew_ms <= created_ms <= one.created_by_ms + self.skew_ms

    def violations(self, history: History) -> Iterator[str]:
        """Yield occurrences that were doubled or early, or that no schedule has."""
        yield from self.early
        for one in self.schedules:
            yield from _doubled(one.name, one.found)
            first_ms = min(one.found, default=0)
            if one.is_aligned:
                first_ms = 0
            elif one.found and not self._may_begin(one, first_ms):
                yield f"schedule: the first occurrence of {one.name} is at {first_ms}"
            strange = [at_ms for at_ms in one.found if (at_ms - first_ms) % one.step_ms]
            if strange:
                yield f"schedule: {one.name} has no occurrences at {strange[:5]}"
        if (changed := self.changed) is not None:
            yield from _doubled(changed.name, changed.found)
            if wrong := [*changed.strange()]:
                yield f"schedule: {changed.name} was paused or had other times at {wrong[:5]}"
            if changed.demanded > changed.asked:
                yield (
                    f"schedule: {changed.name} was run {changed.asked} times, and ran"
                    f" {changed.demanded} times"
                )


def _doubled(name: str, found: Counter[int]) -> Iterator[str]:
    for at_ms, count in found.items():
        if count > 1:
            yield f"schedule: occurrence {at_ms} of {name} was published {count} times"
