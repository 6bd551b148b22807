"""Schedules: each occurrence is published exactly once, and not early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from histories.history import History


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
    early: list[str] = field(default_factory=list)

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

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield occurrences until the end of all faults that are not published."""
        for one in self.schedules:
            until_ms = self.until_ms - self.skew_ms
            missed = [at_ms for at_ms in one.expected(until_ms) if at_ms not in one.found]
            if missed:
                yield f"occurrences {missed[:5]} of {one.name} were not published"

    def _may_begin(self, one: Occurrences, first_ms: int) -> bool:
        """Return whether the first occurrence is one step after the creation."""
        created_ms = first_ms - one.step_ms
        return one.from_ms - self.skew_ms <= created_ms <= one.created_by_ms + self.skew_ms

    def violations(self, history: History) -> Iterator[str]:
        """Yield occurrences that were doubled or early, or that no schedule has."""
        for one in self.schedules:
            yield from one.early
            for at_ms, count in one.found.items():
                if count > 1:
                    yield f"schedule: occurrence {at_ms} of {one.name} was published {count} times"
            first_ms = min(one.found, default=0)
            if one.is_aligned:
                first_ms = 0
            elif one.found and not self._may_begin(one, first_ms):
                yield f"schedule: the first occurrence of {one.name} is at {first_ms}"
            strange = [at_ms for at_ms in one.found if (at_ms - first_ms) % one.step_ms]
            if strange:
                yield f"schedule: {one.name} has no occurrences at {strange[:5]}"
