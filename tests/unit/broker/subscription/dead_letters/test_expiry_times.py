"""When a subscription is woken because something of it expires."""

from __future__ import annotations

from escapement.broker.subscription.dead_letters.expiry import REST_MS, Expiry


def test_without_a_time_to_live_nothing_ever_expires() -> None:
    expiry = Expiry()
    expiry.keeps(5)
    assert expiry.until_ms(1 << 60) == -1
    assert expiry.next_wake_ms() is None
    assert not expiry.begin_sweep()


def test_it_is_woken_when_the_oldest_that_is_kept_expires() -> None:
    """P10."""
    expiry = Expiry()
    expiry.set_ttl(100)
    assert expiry.advance(10_000), "what there was before must be looked at"
    assert expiry.begin_sweep()
    expiry.keeps(20_000)
    expiry.keeps(15_000)
    expiry.keeps(30_000)
    expiry.end_sweep(10_000)
    assert expiry.next_wake_ms() == 15_100
    assert not expiry.advance(15_099)
    assert not expiry.begin_sweep()
    assert expiry.advance(15_100)
    assert expiry.until_ms(15_100) == 15_000


def test_sweeps_have_a_rest_between_them_whether_anybody_sweeps_or_not() -> None:
    expiry = Expiry()
    expiry.set_ttl(100)
    assert expiry.advance(0)
    assert expiry.next_wake_ms() == REST_MS, "who may not sweep now is not woken all the time"
    assert expiry.begin_sweep()
    expiry.keeps(0)
    expiry.end_sweep(5)
    assert expiry.next_wake_ms() == 5 + REST_MS


def test_another_time_to_live_is_looked_at_at_once_and_the_same_is_none() -> None:
    expiry = Expiry()
    expiry.set_ttl(100)
    assert expiry.advance(0)
    assert expiry.begin_sweep()
    expiry.end_sweep(0)
    expiry.set_ttl(100)
    assert expiry.next_wake_ms() is None
    expiry.set_ttl(50)
    assert expiry.next_wake_ms() == 0
    expiry.set_ttl(0)
    assert expiry.next_wake_ms() is None
