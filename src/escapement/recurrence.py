"""The times at which a schedule publishes: by a cron expression, or at a fixed interval.

Pure: times arrive as arguments and no clock is read. Times are Unix milliseconds. An
*occurrence* is one of the times of a schedule.

Cron expressions are those of the cronsim library, which follows Debian's cron: five fields, or
six with seconds first; names of months and days, ranges, steps, ``L``, ``LW``, ``1#2``.
Daylight-saving changes also follow Debian's cron. A time of day that the change to summer time
skips is due right after the gap. A time of day that occurs twice when summer time ends is due
the first time only. If the minute or hour field begins with ``*``, or seconds are given, every
real minute or hour counts, in gaps and overlaps too.

An interval counts real time from an anchor, independent of time zones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import count, islice, takewhile
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from escapement.clock import moment, unix_ms
from escapement.errors import InvalidRequest

# How a schedule treats missed occurrences; the first is the default.
Missed = Literal["last", "skip", "all"]
MISSED: Final[tuple[Missed, ...]] = get_args(Missed)

# The shortest interval of a schedule, because each occurrence costs a message and its share of a
# commit. Cron has no shorter interval either.
MIN_EVERY_MS: Final = 1_000
MAX_TEXT_CHARS: Final = 255
# An occurrence counts as missed if the broker handles it later than this after its time. A restart
# of the broker takes less time. A machine that was off or asleep takes more.
MISSED_AFTER_MS: Final = 60_000

_WALL: Final = datetime(1970, 1, 1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND_MS: Final = 1_000
_DAY_MS: Final = 86_400_000
# How far back ``Recurrence.latest`` searches for an occurrence at first, and the factor by which it
# extends the search if it finds none.
_WINDOW_MS: Final = 60_000
_WINDOW_GROWTH: Final = 8


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The times of a schedule: by a cron expression, or at a fixed interval.

    These are the times of ``cron`` in ``timezone``, or every ``every_ms`` milliseconds after
    ``anchor_ms``. If ``until_ms`` is given, the schedule has only times up to it.
    """

    cron: str = ""
    timezone: str = "UTC"
    every_ms: int = 0
    anchor_ms: int = 0
    until_ms: int | None = None

    def check(self) -> None:
        """Check that a schedule has valid times.

        Raises:
          InvalidRequest: names the field that is not valid, such as the cron expression.
        """
        if bool(self.cron) == bool(self.every_ms):
            raise InvalidRequest("Give a schedule a cron expression or an interval, and not both.")
        if max(len(self.cron), len(self.timezone)) > MAX_TEXT_CHARS:
            raise InvalidRequest(
                f"The cron expression or the time zone has more than {MAX_TEXT_CHARS} characters."
                " Shorten it."
            )
        if self.every_ms and self.every_ms < MIN_EVERY_MS:
            raise InvalidRequest(
                f"An interval of {self.every_ms} ms is too short. Give at least {MIN_EVERY_MS} ms."
            )
        self.zone()
        if self.cron:
            self._simulation(_WALL)

    def occurrences(self, after_ms: int) -> Iterator[int]:
        """Iterate over all times of the schedule later than ``after_ms``, ascending.

        Raises:
          InvalidRequest: if the expression or the time zone is not (or no longer) valid.
        """
        found = self._every(after_ms) if self.every_ms else self._by_cron(after_ms)
        if self.until_ms is None:
            return found
        until_ms = self.until_ms
        return takewhile(lambda ms: ms <= until_ms, found)

    def after(self, ms: int) -> int | None:
        """Return the first time of the schedule later than ``ms``, or None."""
        return next(self.occurrences(ms), None)

    def until(self, after_ms: int, now_ms: int, limit: int) -> list[int]:
        """Return the schedule's times later than ``after_ms`` and up to ``now_ms``.

        Args:
          limit: the most times to return; the first ones are returned.
        """
        coming = self.occurrences(after_ms)
        return list(islice(takewhile(lambda ms: ms <= now_ms, coming), limit))

    def latest(self, since_ms: int, now_ms: int) -> int:
        """Return the schedule's last time that is not later than ``now_ms``.

        Args:
          since_ms: a time of the schedule, not later than ``now_ms``. Earlier times are not
            searched.

        Complexity: O(occurrences in a period before ``now_ms``). The period is at most eight times
        as long as the time from the result to ``now_ms``, or a minute.
        """
        end_ms = now_ms if self.until_ms is None else min(now_ms, self.until_ms)
        window_ms = _WINDOW_MS
        while True:
            begin_ms = max(end_ms - window_ms, since_ms - 1)
            last_ms = None
            for found_ms in takewhile(lambda ms: ms <= now_ms, self.occurrences(begin_ms)):
                last_ms = found_ms
            if last_ms is not None:
                return last_ms
            assert begin_ms >= since_ms, "since_ms is not a time of this schedule"
            window_ms *= _WINDOW_GROWTH

    def _every(self, after_ms: int) -> Iterator[int]:
        """Iterate over the times of a schedule with an interval, later than ``after_ms``."""
        passed = max((after_ms - self.anchor_ms) // self.every_ms, 0)
        return count(self.anchor_ms + (passed + 1) * self.every_ms, self.every_ms)

    def _by_cron(self, after_ms: int) -> Iterator[int]:
        """Iterate over the times of a schedule with a cron expression, later than ``after_ms``."""
        found = self._at_times_of_day if self._has_times_of_day else self._in_real_time
        with suppress(OverflowError, ValueError):  # raised where Python's calendar ends
            yield from found(after_ms)

    @property
    def _has_times_of_day(self) -> bool:
        """Whether the cron expression names times of day, and not every minute or hour."""
        fields = self.cron.split()
        return len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])

    def _at_times_of_day(self, after_ms: int) -> Iterator[int]:
        """Iterate over the times later than ``after_ms``, by cronsim's rules for clock changes."""
        begin = moment(after_ms).astimezone(self.zone())
        for found in self._simulation(begin):
            ms = unix_ms(found)
            # If an hour occurs twice and the search starts in its second occurrence, cronsim also
            # yields times in the first one.
            if ms > after_ms:
                yield ms

    def _in_real_time(self, after_ms: int) -> Iterator[int]:
        """Iterate over the moments at which a clock with local time shows a time of the expression.

        cronsim works in whole hours. It skips times where a clock changes by half an hour, or
        in the middle of an hour. So this function asks cronsim for the times of a clock with a
        constant UTC offset, and starts again from each change of the offset.
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
                return  # cronsim finds no time within fifty years

    def _shifted_ms(self, since_ms: int, shift: timedelta, until_ms: int) -> int | None:
        """Return a moment by which the UTC offset has changed, with no occurrence before it.

        cronsim found no occurrence before ``until_ms``. A clock never changes by more than a
        day, so only the last two days need a search. Returns None if the offset stays the same.

        Args:
          since_ms: a moment with the UTC offset ``shift``.
          until_ms: the next occurrence that cronsim found.
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
        """Return the offset of the schedule's local time from UTC at a moment."""
        shift = moment(at_ms).astimezone(self.zone()).utcoffset()
        assert shift is not None
        return shift

    def _simulation(self, begin: datetime) -> CronSim:
        """Return cronsim's iterator over the times of the expression later than ``begin``.

        Raises:
          InvalidRequest: if the expression is not valid.
        """
        try:
            return CronSim(self.cron, begin)
        except CronSimError as error:
            raise InvalidRequest(
                f"{self.cron[:60]!r} is not a cron expression ({error}). An example of one is"
                " '0 9 * * mon-fri'."
            ) from None

    def zone(self) -> tzinfo:
        """Return the schedule's time zone. Raises ``InvalidRequest`` if the system lacks it."""
        if self.timezone == "UTC":
            return UTC
        try:
            return ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            raise InvalidRequest(
                f"{self.timezone[:60]!r} is not a time zone that this system knows. An example of"
                " one is 'Europe/Berlin'."
            ) from None


def due(
    recurrence: Recurrence, next_ms: int, now_ms: int, missed: Missed, limit: int
) -> tuple[list[int], int | None]:
    """Return the times of a schedule for which it must publish now, and the next time after these.

    If ``next_ms`` is more than a minute ago, all times up to now are *missed*: the policy ``skip``
    publishes for none of them, ``last`` only for the last one, and ``all`` for every one. If they
    are not missed, the schedule publishes for every one.

    Args:
      recurrence: the times of the schedule.
      next_ms: the first time for which the schedule has not published yet.
      now_ms: the current time.
      missed: the policy.
      limit: the most times to return in one call.

    Raises:
      InvalidRequest: if the expression or the time zone is no longer valid.
    """
    assert next_ms <= now_ms, "next_ms is in the future"
    if now_ms - next_ms > MISSED_AFTER_MS:
        if missed == "skip":
            return [], recurrence.after(now_ms)
        if missed == "last":
            last_ms = recurrence.latest(next_ms, now_ms)
            return [last_ms], recurrence.after(last_ms)
    times = [next_ms, *recurrence.until(next_ms, now_ms, limit - 1)]
    return times, recurrence.after(times[-1])
