"""The warning of a wall clock that differs from that of the database (B8)."""

from __future__ import annotations

import logging

import pytest

from escapement.broker.clock_difference import ClockDifference
from escapement.doctor.database import MOST_SKEW_S


def test_clock_that_differs_is_logged_once_until_it_agrees_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    difference = ClockDifference()
    for sent_ms, database_ms, received_ms in (
        (5000, 5000 - int(MOST_SKEW_S * 1000), 5001),
        (5000, 9000, 9500),  # the answer took long, and the database's clock lies in between
        (3_605_000, 5000, 3_605_001),
        (3_606_000, 6000, 3_606_001),
        (7000, 7000, 7001),
        (8000, 10_500, 8001),
    ):
        difference.look(sent_ms, database_ms, received_ms)
    told = [(getattr(one, "event", ""), one.getMessage()) for one in caplog.records]
    assert [event for event, _ in told] == [
        "node.clock_differs",
        "node.clock_agrees",
        "node.clock_differs",
    ]
    assert "3600.0 s ahead of" in told[0][1]
    assert "too early" in told[0][1]
    assert "2.5 s behind" in told[2][1]
    assert "too late" in told[2][1]
