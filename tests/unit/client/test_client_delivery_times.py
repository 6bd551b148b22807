"""Delays, times and positions as the integers of the protocol."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from escapement.client import delivery_times
from escapement.clock import moment
from escapement.errors import InvalidRequest, NaiveDatetime


def test_times_are_rounded_up_and_must_have_a_time_zone() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    assert delivery_times.at_ms(at) == int(datetime(2026, 1, 1, 10, tzinfo=UTC).timestamp() * 1000)
    assert delivery_times.at_ms(at + timedelta(microseconds=1)) == delivery_times.at_ms(at) + 1
    assert moment(delivery_times.at_ms(at)) == at
    assert delivery_times.delay_ms(timedelta(microseconds=1)) == 1
    read = delivery_times.delay_ms
    assert delivery_times.column("delay", [None, "2s"], read, 2).tolist() == [-1, 2000]
    assert delivery_times.column("delay", (3, "m"), read, 2).tolist() == [180_000] * 2
    with pytest.raises(NaiveDatetime):
        delivery_times.at_ms(datetime(2026, 1, 1))
    for bad in ("soon", (1, 2, 3), (1, "eon"), 7, None):
        with pytest.raises(InvalidRequest):
            delivery_times.delay_ms(bad)
    with pytest.raises(InvalidRequest):
        delivery_times.at_ms("2026-01-01")
