"""The limits on a subscription's dispatch: pauses, rates and the in-flight bound."""

from __future__ import annotations

from escapement.broker.subscription.delivery.throttle import Throttle
from escapement.storage.catalog.policy import SubscriptionPolicy
from escapement.storage.catalog.rule import FOREVER_MS


def test_nothing_is_granted_until_the_pause_is_over() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    assert throttle.next_wake_ms() is None, "no messages were requested"
    assert throttle.grant(5, 0, 999) == 0
    assert throttle.next_wake_ms() == 1_000
    assert not throttle.advance(999)
    assert throttle.advance(1_000)
    assert throttle.next_wake_ms() is None
    assert throttle.grant(5, 0, 1_000) == 5


def test_longer_of_two_pauses_counts() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    throttle.topic_paused_until_ms = FOREVER_MS
    assert throttle.grant(5, 0, 2_000) == 0
    assert throttle.next_wake_ms() is None, "the pause has no end to wait for"
    throttle.topic_paused_until_ms = 0
    assert throttle.grant(5, 0, 2_000) == 5


def test_clock_set_back_into_a_pause_pauses_again() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    assert throttle.grant(5, 0, 1_500) == 5
    assert throttle.grant(5, 0, 500) == 0
    assert throttle.next_wake_ms() == 1_000


def test_changed_policy_ends_the_wait() -> None:
    throttle = Throttle(SubscriptionPolicy(paused_until_ms=1_000))
    assert throttle.grant(5, 0, 0) == 0
    throttle.set_policy(SubscriptionPolicy())
    assert throttle.next_wake_ms() is None
    assert throttle.grant(5, 0, 0) == 5


def test_rate_limits_grants_and_sets_the_next_wake() -> None:
    """Q3."""
    throttle = Throttle(SubscriptionPolicy(max_rate=5))
    assert throttle.grant(100, 0, 1_000) == 1
    throttle.delivered(1, 1_000)
    assert throttle.grant(100, 1, 1_000) == 0
    assert throttle.next_wake_ms() == 1_200
    assert throttle.advance(1_200)
    assert throttle.grant(100, 1, 1_200) == 1


def test_high_rate_is_granted_in_portions_without_falling_behind() -> None:
    """Q3: a hundred wakes a second at most, and no message lost to rounding."""
    throttle = Throttle(SubscriptionPolicy(max_rate=12_345))
    now_ms, handed, wakes = 0, 0, 0
    while now_ms < 10_000:
        count = throttle.grant(4_096, 0, now_ms)
        throttle.delivered(count, now_ms)
        handed += count
        if not count:
            wake_ms = throttle.next_wake_ms()
            assert wake_ms is not None
            assert wake_ms > now_ms
            now_ms, wakes = wake_ms, wakes + 1
            throttle.advance(now_ms)
    assert wakes <= 1_001
    assert 123_450 <= handed <= 123_450 + 1_235 + 124


def test_messages_are_granted_up_to_the_in_flight_bound_without_a_wake() -> None:
    """Q3."""
    throttle = Throttle(SubscriptionPolicy(max_in_flight=10))
    assert throttle.grant(100, 0, 0) == 10
    assert throttle.grant(100, 7, 0) == 3
    assert throttle.grant(100, 12, 0) == 0, "the bound was lowered"
    assert throttle.next_wake_ms() is None
