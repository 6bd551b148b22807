"""The guarantees of a token bucket for any period."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.token_bucket import BURST_MS, TokenBucket

RATES = st.floats(0.001, 1e6).map(lambda rate: round(rate, 3))
STEPS = st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 10_000)), max_size=40)


@given(RATES, STEPS)
def test_no_period_spends_more_than_the_rate_and_one_burst(
    rate: float, steps: list[tuple[int, int]]
) -> None:
    """Q3."""
    now_ms = 0
    bucket = TokenBucket(rate, now_ms)
    spent = []
    for passed_ms, wanted in steps:
        now_ms += passed_ms
        taken = min(wanted, bucket.available(now_ms))
        bucket.spend(taken, now_ms)
        spent.append((now_ms, taken))
    for first in range(len(spent)):
        for last in range(first, len(spent)):
            span_ms = spent[last][0] - spent[first][0]
            most = rate * (span_ms + BURST_MS) / 1000 + 1
            assert sum(taken for _, taken in spent[first : last + 1]) <= most + 1e-6


@given(RATES, st.integers(1, 1_000_000))
def test_tokens_are_available_after_the_stated_wait_and_not_before(
    rate: float, wanted: int
) -> None:
    bucket = TokenBucket(rate, 0)
    wanted = min(wanted, bucket.available(0))
    bucket.spend(bucket.available(0), 0)
    wait_ms = bucket.wait_ms(wanted, 0)
    assert wait_ms > 0
    assert bucket.available(wait_ms - 1) < wanted
    assert bucket.available(wait_ms) >= wanted
    assert bucket.wait_ms(wanted, wait_ms) == 0


def test_no_tokens_are_available_until_a_debt_is_paid() -> None:
    bucket = TokenBucket(10, 0)
    bucket.spend(51, 0)
    assert (bucket.available(0), bucket.wait_ms(1, 0)) == (0, 5_100)
    assert bucket.available(5_099) == 0
    assert bucket.available(5_100) == 1


def test_clock_set_back_adds_and_removes_no_tokens() -> None:
    bucket = TokenBucket(10, 10_000)
    bucket.spend(1, 10_000)
    assert bucket.available(5_000) == 0
    assert bucket.available(5_100) == 1


def test_changed_rate_counts_from_now_on_and_a_debt_remains() -> None:
    bucket = TokenBucket(10, 0)
    bucket.spend(11, 0)
    bucket.set_rate(1_000, 500)
    assert bucket.wait_ms(1, 500) == 6
    bucket.set_rate(0.5, 506)
    assert bucket.available(506) == 1
    bucket.spend(1, 506)
    assert bucket.wait_ms(1, 506) == 2_000
