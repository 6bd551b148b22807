"""Durations, converted between text, numbers with a unit, and integer milliseconds."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement import durations
from escapement.durations import MAX_DURATION_MS
from escapement.errors import InvalidRequest

UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("3d", 259_200_000),
        ("2w", 1_209_600_000),
    ],
)
def test_durations_are_read_and_written(text: str, expected_ms: int) -> None:
    assert durations.parse(text) == expected_ms
    assert durations.format(expected_ms) == text


@given(st.integers(0, MAX_DURATION_MS))
def test_formatted_duration_parses_to_the_same_duration(duration_ms: int) -> None:
    assert durations.parse(durations.format(duration_ms)) == duration_ms


@given(st.integers(1, 10**6), st.sampled_from(sorted(UNITS)))
def test_duration_is_formatted_in_its_shortest_form(count: int, unit: str) -> None:
    assert len(durations.format(count * UNITS[unit])) <= len(f"{count}{unit}")


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "m", "1.5h", "-1s", "+1s", " 1s", "1s ", "1 s", "1M", "1H", "1y", "1h30m"),
        *("1s\n", "٣s", "9" * 19 + "w", "9" * 5000 + "s"),
    ],
)
def test_malformed_durations_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        durations.parse(text)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("value", "unit", "expected_ms"),
    [
        (3, "minutes", 180_000),
        (1, "minute", 60_000),
        (1, "m", 60_000),
        (7, "ms", 7),
        (7, "milliseconds", 7),
        (2, "s", 2000),
        (2, "seconds", 2000),
        (2, "hours", 7_200_000),
        (2, "days", 172_800_000),
        (1, "week", 604_800_000),
        (1.1, "h", 3_960_000),
        (0.05, "h", 180_000),
        (0.0001, "s", 1),
        (1e-300, "ms", 1),
        (0.0, "s", 0),
    ],
)
def test_a_number_and_a_unit_make_milliseconds(
    value: int | float, unit: str, expected_ms: int
) -> None:
    assert durations.of(value, unit) == expected_ms


@given(st.timedeltas(min_value=timedelta(0)))
def test_a_timedelta_is_rounded_up_to_whole_milliseconds(
    span: timedelta,
) -> None:
    rounded = timedelta(milliseconds=durations.of(span))
    assert span <= rounded < span + timedelta(milliseconds=1)


def test_the_longest_timedelta_is_a_valid_duration() -> None:
    assert durations.of(timedelta.max - timedelta(days=1)) < MAX_DURATION_MS


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        (-1, "s"),
        (-0.001, "ms"),
        (float("nan"), "s"),
        (float("inf"), "s"),
        (float("-inf"), "s"),
        (1e308, "w"),
        (2**63, "ms"),
        (10**30, "weeks"),
        pytest.param(10**5000, "weeks", id="astronomical"),
        (1, None),
        (1, "fortnights"),
        (1, "S"),
        (1, ""),
        (True, "s"),
        ("1", "s"),
        (None, "s"),
        (timedelta(seconds=-1), None),
        (timedelta(microseconds=-1), None),
        (timedelta(seconds=1), "s"),
    ],
)
def test_values_that_are_not_durations_are_refused(value: object, unit: str | None) -> None:
    with pytest.raises(InvalidRequest):
        durations.of(value, unit)  # type: ignore[arg-type]
