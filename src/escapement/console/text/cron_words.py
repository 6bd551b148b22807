"""A cron expression in words, where the words say the same as the expression.

The words are those of the library cron-descriptor, and the broker computes times with cronsim. For
some expressions they differ: ``*/90`` in the minute field is every hour, ``*/2`` in the day field
begins again on the first of each month, and some lists lose their parts. So only fields of simple
forms get words. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from cron_descriptor import ExpressionDescriptor, Options
from cron_descriptor.Exception import FormatError

from escapement.errors import InvalidRequest
from escapement.recurrence import Recurrence

# The step of ``*/N`` must divide the length of the field. Otherwise the last step is shorter.
_LENGTHS: Final = {"second": 60, "minute": 60, "hour": 24, "month": 12}
_FIELDS: Final = ("second", "minute", "hour", "day", "month", "weekday")
_ONE: Final = r"(?:\d+|[a-z]{3})"
_LIST: Final = re.compile(rf"{_ONE}(?:,{_ONE})*")
_RANGE: Final = re.compile(rf"({_ONE})-({_ONE})")
_STEP: Final = re.compile(r"\*/(\d+)")
# These stand alone: beside another day or weekday, the words do not say that either is enough.
_DAYS_ALONE: Final = re.compile(r"l|lw")
_WEEKDAYS_ALONE: Final = re.compile(rf"{_ONE}#\d|\d+l")
# From Sunday to Sunday: the words would be understood as one day.
_WHOLE_WEEK: Final = ("0-7", "sun-7")


@lru_cache(maxsize=1000)
def words(cron: str) -> str:
    """Return a cron expression in words, such as ``At 09:00, Monday through Friday``.

    Returns "" for an expression that is not valid, and for one with a field of another form than
    these: ``*``, a list of single values, one range, ``*/N``, and ``L``, ``LW``, ``5L`` or ``1#2``.
    """
    fields = cron.lower().split()
    named = dict(zip(_FIELDS[-len(fields) :], fields, strict=False))
    if not all(_is_simple(name, text) for name, text in named.items()):
        return ""
    day, weekday = named.get("day", "*"), named.get("weekday", "*")
    if _DAYS_ALONE.fullmatch(day) and weekday != "*":
        return ""
    if _WEEKDAYS_ALONE.fullmatch(weekday) and day != "*":
        return ""
    options = Options()
    options.locale_code = "en_US"
    options.use_24hour_time_format = True
    try:
        Recurrence(cron=cron).check()
        return str(ExpressionDescriptor(cron, options).get_full_description())
    except (InvalidRequest, FormatError):
        return ""


def _is_simple(name: str, text: str) -> bool:
    step = _STEP.fullmatch(text)
    if step is not None:
        length = _LENGTHS.get(name, 0)
        return 0 < int(step[1]) < length and length % int(step[1]) == 0
    if name == "day" and _DAYS_ALONE.fullmatch(text):
        return True
    if name == "weekday" and _WEEKDAYS_ALONE.fullmatch(text):
        return True
    if range := _RANGE.fullmatch(text):
        return range[1] != range[2] and text not in _WHOLE_WEEK
    return text == "*" or _LIST.fullmatch(text) is not None
