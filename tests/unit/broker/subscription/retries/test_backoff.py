"""The back-off between delivery attempts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.subscription.retries.backoff import BackOff


def test_the_first_wait_is_the_ack_wait_and_each_further_one_doubles() -> None:
    """V4: first retry after ack_wait, then doubled, within the bounds."""
    policy = BackOff(ack_wait_ms=1000, max_backoff_ms=5000, jitter=0.0)
    assert policy.wait_ms(np.arange(1, 6), 0.0).tolist() == [1000, 2000, 4000, 5000, 5000]
    policy = BackOff(ack_wait_ms=100, min_backoff_ms=300, jitter=0.0)
    assert policy.wait_ms(np.arange(1, 5), 0.0).tolist() == [300, 300, 400, 800]


def test_minimum_back_off_doubles_without_an_ack_wait() -> None:
    """V4: messages of exclusive and failover subscriptions have no ack_wait."""
    policy = BackOff(ack_wait_ms=0, min_backoff_ms=1000, max_backoff_ms=5000, jitter=0.0)
    assert policy.wait_ms(np.arange(1, 6), 0.0).tolist() == [1000, 2000, 4000, 5000, 5000]
    assert BackOff(ack_wait_ms=0).wait_ms(np.arange(1, 6), 1.0).tolist() == [0] * 5


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**12))
def test_wait_never_decreases_with_attempts_and_never_overflows(
    ack_wait_ms: int, low_ms: int, high_ms: int
) -> None:
    """V4: for any number of attempts."""
    policy = BackOff(ack_wait_ms, low_ms, high_ms)
    waits = policy.wait_ms(np.array([1, 2, 3, 10, 31, 32, 33, 64, 1000, 2**40]), 1.0)
    assert (waits > 0).all()
    assert (np.diff(waits) >= 0).all()
    assert int(waits.max()) < 2**50


def test_jitter_adds_a_third_at_most() -> None:
    """V4: jitter up to 33 %."""
    policy = BackOff(ack_wait_ms=1000)
    chance = np.random.default_rng(7).random(1000)
    waits = policy.wait_ms(np.ones(1000, np.int64), chance)
    assert waits.min() >= 1000
    assert waits.max() <= 1330
    assert len(np.unique(waits)) > 100


@given(
    st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 10**7), st.floats(0, 1), st.data()
)
def test_no_wait_including_jitter_is_longer_than_its_bound(
    ack_wait_ms: int, low_ms: int, high_ms: int, jitter: float, data: st.DataObject
) -> None:
    """V4: waits never decrease, and are at least ack_wait unless max_backoff is shorter."""
    policy = BackOff(ack_wait_ms, min(low_ms, high_ms), high_ms, jitter)
    attempts = np.array([1, 2, 3, 10, 31, 64])
    chance = data.draw(st.floats(0, 1))
    waits = policy.wait_ms(attempts, chance)
    assert waits.max() <= high_ms
    assert waits.min() >= min(max(ack_wait_ms, low_ms), high_ms)
    assert (np.diff(waits) >= 0).all()
    many = policy.until_ms(7, np.full(100, 64), np.random.default_rng(7).random(100))
    assert many.max() <= 7 + high_ms
    assert many.min() >= 7 + policy.wait_ms(np.array([64]), 0.0)[0]


def test_messages_at_the_maximum_back_off_return_at_different_times() -> None:
    """V4: the jitter is then subtracted from the bound, not added to it."""
    policy = BackOff(ack_wait_ms=1_000, max_backoff_ms=60_000)
    until = policy.until_ms(0, np.full(1000, 20), np.random.default_rng(7).random(1000))
    assert 45_000 <= until.min() < 46_500
    assert 59_000 < until.max() <= 60_000
    assert len(np.unique(until)) > 10


@given(st.integers(0, 2**45), st.integers(1, 10**7), st.floats(0, 1))
def test_messages_that_wait_together_return_in_a_few_portions(
    now_ms: int, ack_wait_ms: int, jitter: float
) -> None:
    """V4, Q6: no message returns before its wait is over, or later than the jitter allows."""
    policy = BackOff(ack_wait_ms, jitter=jitter)
    attempts = np.full(500, 3)
    chance = np.random.default_rng(7).random(500)
    until = policy.until_ms(now_ms, attempts, chance)
    low = policy.wait_ms(attempts, 0.0)[0] + now_ms
    high = policy.wait_ms(attempts, 1.0)[0] + now_ms
    assert low <= until.min() <= until.max() <= high
    assert len(np.unique(until)) <= 18


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0.0, 1.0))
def test_the_first_wait_is_that_of_one_attempt_without_jitter(
    ack_wait_ms: int, min_backoff_ms: int, max_backoff_ms: int, jitter: float
) -> None:
    """V4."""
    policy = BackOff(ack_wait_ms, min_backoff_ms, max_backoff_ms, jitter)
    assert policy.first_wait_ms == int(policy.wait_ms(np.array([1]), 0.0)[0])
