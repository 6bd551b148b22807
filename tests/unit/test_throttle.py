"""What holds a subscription's dispatch back."""

from __future__ import annotations

from escapement.broker.throttle import Throttle
from escapement.storage.policy import FOREVER_MS, SubscriptionPolicy


def test_nothing_is_granted_until_the_pause_is_over() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    assert throttle.next_wake_ms() is None, "nobody has asked"
    assert throttle.grant(5, 999) == 0
    assert throttle.next_wake_ms() == 1_000
    assert not throttle.advance(999)
    assert throttle.advance(1_000)
    assert throttle.next_wake_ms() is None
    assert throttle.grant(5, 1_000) == 5


def test_of_two_pauses_the_longer_counts() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    throttle.topic_paused_until_ms = FOREVER_MS
    assert throttle.grant(5, 2_000) == 0
    assert throttle.next_wake_ms() is None, "there is no time to wait for"
    throttle.topic_paused_until_ms = 0
    assert throttle.grant(5, 2_000) == 5


def test_a_clock_set_back_before_the_end_of_a_pause_pauses_again() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    assert throttle.grant(5, 1_500) == 5
    assert throttle.grant(5, 500) == 0
    assert throttle.next_wake_ms() == 1_000


def test_another_policy_ends_the_wait() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    assert throttle.grant(5, 0) == 0
    throttle.set_policy(SubscriptionPolicy())
    assert throttle.next_wake_ms() is None
    assert throttle.grant(5, 0) == 5
