"""The effect of an answer on a message."""

from __future__ import annotations

import pytest

from escapement.push.outcome import MAX_RETRY_AFTER_MS, Outcome, Verdict, outcome_of

# 24 December 2026, 12:00:00 UTC.
NOW_MS = 1_798_113_600_000


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.ACKNOWLEDGE), (204, Verdict.ACKNOWLEDGE), (299, Verdict.ACKNOWLEDGE),
        (301, Verdict.RETRY), (307, Verdict.RETRY), (304, Verdict.RETRY),
        (400, Verdict.REJECT), (401, Verdict.REJECT), (404, Verdict.REJECT),
        (410, Verdict.REJECT), (422, Verdict.REJECT), (499, Verdict.REJECT),
        (429, Verdict.RETRY),
        (500, Verdict.RETRY), (502, Verdict.RETRY), (503, Verdict.RETRY), (599, Verdict.RETRY),
        (600, Verdict.RETRY), (101, Verdict.RETRY),
    ],
)  # fmt: skip
def test_status_decides_what_happens_to_the_message(status: int, verdict: Verdict) -> None:
    """B16"""
    assert outcome_of(status, None, NOW_MS) == Outcome(verdict, f"HTTP {status}", None)


@pytest.mark.parametrize(
    ("text", "wait_ms"),
    [
        ("0", 0),
        ("90", 90_000),
        (" 5 ", 5_000),
        ("999999999", MAX_RETRY_AFTER_MS),
        ("9999999999999999999999", None),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
        ("٣", None),
        ("Thu, 24 Dec 2026 12:01:30 GMT", 90_000),
        ("Thu, 24 Dec 2026 12:01:30", 90_000),
        ("Thursday, 24-Dec-26 12:01:30 GMT", 90_000),
        ("Thu, 24 Dec 2026 11:00:00 GMT", 0),
        ("Thu, 24 Dec 2099 12:00:00 GMT", MAX_RETRY_AFTER_MS),
        ("Thu, 24 Dec 0001 12:00:00 GMT", 0),
        ("Thu, 99 Dec 2026 12:00:00 GMT", None),
    ],
)
def test_retry_after_is_a_number_or_a_date_within_bounds(text: str, wait_ms: int | None) -> None:
    """B16"""
    for status in (429, 503):
        assert outcome_of(status, text, NOW_MS).wait_ms == wait_ms
    for status in (200, 404, 500):
        assert outcome_of(status, text, NOW_MS).wait_ms is None
