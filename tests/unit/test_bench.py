"""What the bench counts and how it sums up, without a broker."""

from __future__ import annotations

import numpy as np
import pytest

from escapement.bench.outcome import Outcome, Run
from escapement.bench.payload import PayloadSize
from escapement.bench.stage import now_ms
from escapement.bench.tally import Tally
from escapement.errors import InvalidRequest


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_a_message_that_is_there_before_it_is_due_is_early() -> None:
    tally = Tally()
    tally.add(column(0, 1), column(now_ms() + 60_000, now_ms() - 60_000))
    tally.add_one(2, now_ms() + 60_000, b"")
    assert tally.early() == 2


def test_a_message_due_before_it_was_wanted_is_early() -> None:
    tally = Tally()
    tally.sent(column(0, 1), column(now_ms() + 60_000, now_ms() - 60_000))
    tally.add(column(1, 0), column(now_ms() - 1, now_ms() - 1))
    assert tally.early() == 1


def test_what_did_not_arrive_is_lost_and_what_came_twice_is_a_duplicate() -> None:
    tally = Tally()
    tally.sent(column(0, 1, 2, 3), column(1, 1, 1, 1))
    tally.add(column(3, 1), column(1, 1))
    tally.add_one(1, 1, b"")
    assert tally.received == 3
    assert tally.lost() == 2
    assert tally.duplicates() == 1


def test_lateness_is_arrival_less_due_time() -> None:
    tally = Tally()
    tally.add(column(0, 1, 2), np.full(3, now_ms() - 5_000))
    late = tally.lateness()
    assert 5_000 <= late.p50 == late.p99 == late.max < 30_000


def test_an_outcome_has_medians_of_figures_and_sums_of_mishaps() -> None:
    runs = [Run(100, seconds, lost=1, early=0, duplicates=0) for seconds in (1.0, 4.0, 2.0)]
    found = Outcome("burst", "sqlite", {}, runs).as_json()
    assert found["messages_per_second"] == 50
    assert found["seconds"] == 2.0
    assert found["lost"] == 3
    assert len(found["runs"]) == 3
    assert "lateness_ms" not in found


@pytest.mark.parametrize(("text", "size"), [("100", (100, 100)), ("50-500", (50, 500))])
def test_payloads_have_the_sizes_asked_for(text: str, size: tuple[int, int]) -> None:
    found = PayloadSize.parse(text)
    assert found == size
    assert str(found) == text
    lengths = found.batch(np.random.default_rng(1), 1000).payloads.lengths
    assert lengths.min() >= size[0]
    assert lengths.max() <= size[1]


@pytest.mark.parametrize("text", ["", "-", "5-", "500-50", "-1", "ten"])
def test_sizes_that_cannot_be_meant_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="size"):
        PayloadSize.parse(text)
