"""When something that recurs is due: a cron expression in a time zone, or every so often.

Pure: no clock is read, times arrive as arguments. Times are Unix milliseconds.

Cron expressions are those of the cronsim library, which follows Debian's cron: five
fields, or six with seconds first; names of months and days, ranges, steps, ``L``, ``LW``,
``1#2``. So do daylight-saving changes: a time of day that a change to summer time leaves
out is due right after the gap; one that comes twice when summer time ends is due the first
time only; where minute or hour begin with ``*``, or seconds are given, each real minute or
hour counts, in gaps and overlaps too.

"Every" counts real time from an anchor, whatever the clocks on the wall do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, takewhile
from typing import Final, Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from escapement.errors import InvalidRequest

Missed = Literal["skip", "last", "all"]

# Each occurrence is a message and its share of a commit; cron knows nothing shorter either.
MIN_EVERY_MS: Final = 1_000
MAX_TEXT_CHARS: Final = 255
# Whoever comes to an occurrence later than this was not there when it was due: a restart
# takes less, a machine that was off or asleep takes more.
MISSED_AFTER_MS: Final = 60_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WALL: Final = datetime(1970, 1, 1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND_MS: Final = 1_000
_DAY_MS: Final = 86_400_000
# How far back the last occurrence is looked for at first, and how much further each time.
_WINDOW_MS: Final = 60_000
_WINDOW_GROWTH: Final = 8


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Either ``cron`` in ``timezone``, or ``every_ms`` from ``anchor_ms`` on; to ``until_ms``."""

    cron: str = ""
    timezone: str = "UTC"
    every_ms: int = 0
    anchor_ms: int = 0
    until_ms: int | None = None

    def check(self) -> None:
        """Whether it can be meant.

        Raises:
          InvalidRequest: says what of it cannot.
        """
        if bool(self.cron) == bool(self.every_ms):
            raise InvalidRequest("a schedule has a cron expression or an interval, one of both")
        if max(len(self.cron), len(self.timezone)) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"a cron expression has up to {MAX_TEXT_CHARS} characters")
        if self.every_ms and self.every_ms < MIN_EVERY_MS:
            raise InvalidRequest(f"an interval of {self.every_ms} ms is shorter than a second")
        self.check_zone()
        if self.cron:
            self._simulation(_WALL)

    def check_zone(self) -> None:
        """Whether this system knows the time zone. Raises ``InvalidRequest``."""
        self._zone()

    def occurrences(self, after_ms: int) -> Iterator[int]:
        """All that are due later than ``after_ms``, ascending.

        Raises:
          InvalidRequest: if the expression or the time zone is none (any more).
        """
        found = self._every(after_ms) if self.every_ms else self._by_cron(after_ms)
        if self.until_ms is None:
            return found
        until_ms = self.until_ms
        return takewhile(lambda ms: ms <= until_ms, found)

    def after(self, ms: int) -> int | None:
        """The first that is due later than ``ms``; None if there is none."""
        if self.every_ms:
            next_ms = self._next_every(ms)
            return next_ms if self.until_ms is None or next_ms <= self.until_ms else None
        return next(self.occurrences(ms), None)

    def until(self, after_ms: int, now_ms: int, limit: int) -> list[int]:
        """Those that are due later than ``after_ms`` and by ``now_ms``: the first ``limit``."""
        if self.every_ms:
            end_ms = now_ms if self.until_ms is None else min(now_ms, self.until_ms)
            return list(range(self._next_every(after_ms), end_ms + 1, self.every_ms)[:limit])
        coming = self.occurrences(after_ms)
        return list(islice(takewhile(lambda ms: ms <= now_ms, coming), limit))

    def latest(self, since_ms: int, now_ms: int) -> int:
        """The last one due by ``now_ms``; ``since_ms`` is one that is.

        Complexity: O(occurrences within eight times the distance of the last one).
        """
        if self.every_ms:
            end_ms = now_ms if self.until_ms is None else min(now_ms, self.until_ms)
            return end_ms - (end_ms - self.anchor_ms) % self.every_ms
        end_ms = now_ms if self.until_ms is None else min(now_ms, self.until_ms)
        window_ms = _WINDOW_MS
        while True:
            begin_ms = max(end_ms - window_ms, since_ms - 1)
            last_ms = None
            for found_ms in takewhile(lambda ms: ms <= now_ms, self.occurrences(begin_ms)):
                last_ms = found_ms
            if last_ms is not None:
                return last_ms
            assert begin_ms >= since_ms, "nothing is due, not even what is"
            window_ms *= _WINDOW_GROWTH

    def _every(self, after_ms: int) -> Iterator[int]:
        return count(self._next_every(after_ms), self.every_ms)

    def _next_every(self, after_ms: int) -> int:
        """The first multiple of ``every_ms`` from the anchor on that is later."""
        passed = max((after_ms - self.anchor_ms) // self.every_ms, 0)
        return self.anchor_ms + (passed + 1) * self.every_ms

    def _by_cron(self, after_ms: int) -> Iterator[int]:
        found = self._at_times_of_day if self._has_times_of_day else self._in_real_time
        with suppress(OverflowError, ValueError):  # the calendar ends
            yield from found(after_ms)

    @property
    def _has_times_of_day(self) -> bool:
        """Whether it names times on the wall, and not real minutes or hours."""
        fields = self.cron.split()
        return len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])

    def _at_times_of_day(self, after_ms: int) -> Iterator[int]:
        begin = (_EPOCH + after_ms * _MILLISECOND).astimezone(self._zone())
        for found in self._simulation(begin):
            ms = (found - _EPOCH) // _MILLISECOND
            # Begun in the second of two hours, it names times of the first as well.
            if ms > after_ms:
                yield ms

    def _in_real_time(self, after_ms: int) -> Iterator[int]:
        """Each moment at which the wall shows what is asked for.

        cronsim goes by whole hours, and where clocks are shifted by half an hour, or in the middle
        of one, it leaves some out. So it is asked for times on a wall whose clock stays as it is,
        and asked again from each shift on.
        """
        begin_ms = since_ms = after_ms
        while True:
            shift = self._shift(since_ms)
            for found in self._simulation(_WALL + begin_ms * _MILLISECOND + shift):
                ms = (found - _WALL - shift) // _MILLISECOND
                shifted_ms = self._shifted_ms(since_ms, shift, ms)
                if shifted_ms is not None:
                    begin_ms, since_ms = shifted_ms - _SECOND_MS, shifted_ms
                    break
                yield ms
                since_ms = ms
            else:
                return  # there is none in fifty years

    def _shifted_ms(self, since_ms: int, shift: timedelta, until_ms: int) -> int | None:
        """A moment when clocks are not as they were at first, before which nothing is due.

        Nothing was found before ``until_ms``, and no clock is ever shifted by more than a day: so
        only the last two days are looked at.
        """
        low_ms = max(since_ms, until_ms - 2 * _DAY_MS)
        if self._shift(low_ms) != shift:
            return low_ms
        while low_ms < until_ms:
            high_ms = min(low_ms + _DAY_MS, until_ms)
            if self._shift(high_ms) != shift:
                while high_ms - low_ms > 1:
                    middle_ms = (low_ms + high_ms) // 2
                    if self._shift(middle_ms) == shift:
                        low_ms = middle_ms
                    else:
                        high_ms = middle_ms
                return high_ms
            low_ms = high_ms
        return None

    def _shift(self, at_ms: int) -> timedelta:
        """How far the wall is ahead of UTC at a moment."""
        shift = (_EPOCH + at_ms * _MILLISECOND).astimezone(self._zone()).utcoffset()
        assert shift is not None
        return shift

    def _simulation(self, begin: datetime) -> CronSim:
        try:
            return CronSim(self.cron, begin)
        except CronSimError as error:
            raise InvalidRequest(
                f"{self.cron[:60]!r} is not a cron expression ({error}); such as '0 9 * * mon-fri'"
            ) from None

    def _zone(self) -> tzinfo:
        if self.timezone == "UTC":
            return UTC
        try:
            return ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            raise InvalidRequest(
                f"{self.timezone[:60]!r} is not a time zone such as Europe/Berlin"
            ) from None


def due(
    recurrence: Recurrence, next_ms: int, now_ms: int, missed: Missed, limit: int
) -> tuple[list[int], int | None]:
    """What is to be published now, and when the next one is due after that.

    Whoever comes to ``next_ms`` more than a minute late has *missed* all that was due by
    now: of that ``skip`` publishes nothing, ``last`` the last one, ``all`` everything, up to
    ``limit`` at a time. In time, everything is published.

    Raises:
      InvalidRequest: if the expression or the time zone is none any more.
    """
    assert next_ms <= now_ms, "nothing is due"
    if now_ms - next_ms > MISSED_AFTER_MS:
        if missed == "skip":
            return [], recurrence.after(now_ms)
        if missed == "last":
            last_ms = recurrence.latest(next_ms, now_ms)
            return [last_ms], recurrence.after(last_ms)
    times = [next_ms, *recurrence.until(next_ms, now_ms, limit - 1)]
    return times, recurrence.after(times[-1])
