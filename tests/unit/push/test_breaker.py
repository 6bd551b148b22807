"""The circuit breaker, on a virtual clock."""

from __future__ import annotations

from escapement.push.breaker import FAILURES, FIRST_PAUSE_MS, LONGEST_PAUSE_MS, Breaker


def opened(now_ms: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        breaker.failed(now_ms)
    return breaker


def test_breaker_opens_after_failures_in_a_row() -> None:
    """B16"""
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed(0)
    assert breaker.is_closed
    assert (breaker.most(0), breaker.wake_ms(0)) == (None, None)
    breaker.succeeded()
    for _ in range(FAILURES - 1):
        breaker.failed(0)
    assert breaker.is_closed
    breaker.failed(0)
    assert not breaker.is_closed
    assert (breaker.most(0), breaker.wake_ms(0)) == (0, FIRST_PAUSE_MS)


def test_one_probe_follows_the_pause_and_its_success_closes_the_breaker() -> None:
    """B16"""
    breaker = opened()
    assert breaker.most(FIRST_PAUSE_MS - 1) == 0
    assert breaker.most(FIRST_PAUSE_MS) == 1
    assert breaker.wake_ms(FIRST_PAUSE_MS) is None
    breaker.succeeded()
    assert breaker.is_closed
    assert breaker.most(FIRST_PAUSE_MS) is None


def test_each_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    """B16"""
    breaker, now_ms, pauses_ms = opened(), 0, []
    for _ in range(10):
        until_ms = breaker.wake_ms(now_ms)
        assert until_ms is not None
        pauses_ms.append(until_ms - now_ms)
        now_ms = until_ms
        breaker.failed(now_ms)
    expected = [min(FIRST_PAUSE_MS << n, LONGEST_PAUSE_MS) for n in range(10)]
    assert pauses_ms == expected
    assert pauses_ms[-1] == LONGEST_PAUSE_MS
    breaker.succeeded()
    for _ in range(FAILURES):
        breaker.failed(now_ms)
    assert breaker.wake_ms(now_ms) == now_ms + FIRST_PAUSE_MS


def test_posts_that_began_before_it_opened_do_not_make_the_pause_longer() -> None:
    """B16"""
    breaker = opened()
    for _ in range(20):
        breaker.failed(1)
    assert breaker.wake_ms(1) == FIRST_PAUSE_MS
    breaker.succeeded()  # one of them was answered after all
    assert breaker.most(2) is None


def test_wait_that_the_endpoint_asks_for_outlasts_answers_to_other_posts() -> None:
    """B16"""
    breaker = Breaker()
    breaker.failed(0)
    breaker.hold(60_000)
    breaker.succeeded()
    assert (breaker.most(59_999), breaker.wake_ms(59_999)) == (0, 60_000)
    assert breaker.most(60_000) is None
