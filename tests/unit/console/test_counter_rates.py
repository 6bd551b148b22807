"""Rates between two readings of counters."""

from __future__ import annotations

from escapement.console.reading.rates import MOST_READINGS, Rates


def test_rate_is_the_growth_between_two_readings() -> None:
    rates = Rates()
    assert rates.of("orders", {"delivered": 100}, 0) == {"delivered": None}
    assert rates.of("orders", {"delivered": 400}, 2000) == {"delivered": 150.0}
    # Two pages at once show the same rate.
    assert rates.of("orders", {"delivered": 401}, 2500) == {"delivered": 150.0}
    assert rates.of("orders", {"delivered": 400}, 4000) == {"delivered": 0.0}


def test_counter_that_has_fallen_began_again() -> None:
    rates = Rates()
    rates.of("orders", {"delivered": 1000}, 0)
    assert rates.of("orders", {"delivered": 50}, 1000) == {"delivered": 50.0}


def test_number_of_readings_is_bounded() -> None:
    rates = Rates()
    for at in range(MOST_READINGS + 1):
        rates.of(str(at), {"delivered": 0}, 0)
    assert rates.of("1", {"delivered": 1000}, 1000) == {"delivered": 1000.0}
    assert rates.of("0", {"delivered": 1000}, 1000) == {"delivered": None}
