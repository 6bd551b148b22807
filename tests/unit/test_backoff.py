"""How long a message may go unacknowledged."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.backoff import BackOff


def test_the_first_wait_is_the_ack_wait_and_each_further_one_doubles() -> None:
    """V4: first retry after ack_wait, then doubled, within the bounds."""
    policy = BackOff(ack_wait_ms=1000, max_backoff_ms=5000, jitter=0.0)
    assert policy.wait_ms(np.arange(1, 6), 0.0).tolist() == [1000, 2000, 4000, 5000, 5000]
    policy = BackOff(ack_wait_ms=100, min_backoff_ms=300, jitter=0.0)
    assert policy.wait_ms(np.arange(1, 5), 0.0).tolist() == [300, 300, 400, 800]


@given(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**12))
def test_the_wait_is_monotone_at_any_attempt_and_never_overflows(
    ack_wait_ms: int, low_ms: int, high_ms: int
) -> None:
    """V4: monotone at any epoch."""
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
