"""Cron expressions in words: they say what the broker does, or nothing (B14)."""

from __future__ import annotations

import random
from datetime import datetime
from itertools import islice

import pytest
from cronsim import CronSim

from escapement.console.text.cron_words import words


@pytest.mark.parametrize(
    ("cron", "text"),
    [
        ("0 9 * * mon-fri", "At 09:00, Monday through Friday"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("30 3 1 * *", "At 03:30, on day 1 of the month"),
        ("0 18 L * *", "At 18:00, on the last day of the month"),
        ("0 9 LW * *", "At 09:00, on the last weekday of the month"),
        ("0,30 * * * * *", "At 0 and 30 seconds past the minute"),
        ("0 0 1 1 * *", "At 01:00, on day 1 of the month"),
        ("0 9 * * 1#2", "At 09:00, on the second Monday of the month"),
        ("0 9 * * 5L", "At 09:00, on the last Friday of the month"),
        # Debian's cron: neither field begins with a star, so either is enough.
        ("0 9 13 * 5", "At 09:00, on day 13 of the month, or on Friday"),
        ("0 0 * * 7", "At 00:00, only on Sunday"),
    ],
)
def test_simple_expression_has_words(cron: str, text: str) -> None:
    assert words(cron) == text


@pytest.mark.parametrize(
    "cron",
    [
        "*/90 * * * *",  # every hour
        "*/7 * * * *",  # the last step of an hour has four minutes
        "0 9 */2 * *",  # from the 31st to the 1st is one day
        "0 9 * * */2",
        "0 9 */2 * mon",  # Debian's cron: both must match, because the day begins with a star
        "0 9 * * mon#1,fri#3",
        "0 9 15 * 5#1",
        "0 9 L,15 * *",
        "0 9-11,14 * * *",
        "0 9 * * 0-7",
        "0 22-2 * * *",  # not valid
        "0 0 31 2 *",  # never
        "@daily",
        "",
    ],
)
def test_other_expression_has_no_words(cron: str) -> None:
    assert words(cron) == ""


def test_equal_words_mean_equal_times() -> None:
    """Two expressions with the same words have the same times in cronsim."""
    random_ = random.Random(20)
    by_words: dict[str, tuple[str, list[datetime]]] = {}
    compared = 0
    for _ in range(4000):
        cron = _expression(random_)
        text = words(cron)
        if not text:
            continue
        times = list(islice(CronSim(cron, datetime(2026, 1, 1)), 12))
        other, expected = by_words.setdefault(text, (cron, times))
        assert times == expected, f"{cron!r} and {other!r} are both {text!r}"
        compared += other != cron
    assert len(by_words) > 500
    assert compared > 50


def _expression(random_: random.Random) -> str:
    """Return an expression of few different values, so that some mean the same."""
    fields = [
        ["0", "5", "0,30", "30,0", "*/5", "*/7", "*", "10-20", "*/1", "10-10"],
        ["9", "09", "*", "*/6", "*/5", "8-17", "9,17", "0"],
        ["*", "1", "13", "L", "LW", "1-7", "1,15", "*/2"],
        ["*", "1", "jan", "1-3", "jan-mar", "*/3", "*/5"],
        ["*", "1", "mon", "0", "7", "sun", "1-5", "mon-fri", "1#2", "5L", "0-7", "5-7", "1,3"],
    ]
    return " ".join(random_.choice(choices) for choices in fields)
