"""The times at which a subscription wakes because messages expire."""

from __future__ import annotations

from escapement.broker.subscription.dead_letters.expiry import REST_MS, Expiry


def test_without_a_time_to_live_nothing_ever_expires() -> None:
    expiry = Expiry()
    expiry.keeps(5)
    assert expiry.until_ms(1 << 60) == -1
    assert expiry.next_wake_ms() is None
    assert not expiry.begin_sweep()


def test_subscription_wakes_when_its_oldest_kept_message_expires() -> None:
    """P10."""
    expiry = Expiry()
    expiry.set_ttl(100)
    assert expiry.advance(10_000), "existing messages must be checked"
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


def test_wake_ups_for_sweeps_are_spaced_even_if_no_sweep_runs() -> None:
    expiry = Expiry()
    expiry.set_ttl(100)
    assert expiry.advance(0)
    assert expiry.next_wake_ms() == REST_MS, "it is not woken all the time"
    assert expiry.begin_sweep()
    expiry.keeps(0)
    expiry.end_sweep(5)
    assert expiry.next_wake_ms() == 5 + REST_MS


def test_changed_time_to_live_is_checked_at_once() -> None:
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
