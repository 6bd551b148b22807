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


def test_figure_that_has_fallen_has_no_rate_until_it_grows() -> None:
    """B14: a sum falls if one broker of several starts again, and the log if a part is deleted."""
    rates = Rates()
    rates.of("brokers", {"log_bytes": 10**12, "delivered": 10**9}, 0)
    fallen = {"log_bytes": 9 * 10**11, "delivered": 10**9 + 7}
    assert rates.of("brokers", fallen, 1000) == {"log_bytes": None, "delivered": 7.0}
    grown = {"log_bytes": 9 * 10**11 + 50, "delivered": 10**9 + 7}
    assert rates.of("brokers", grown, 2000) == {"log_bytes": 50.0, "delivered": 0.0}


def test_number_of_readings_is_bounded() -> None:
    rates = Rates()
    for at in range(MOST_READINGS + 1):
        rates.of(str(at), {"delivered": 0}, 0)
    assert rates.of("1", {"delivered": 1000}, 1000) == {"delivered": 1000.0}
    assert rates.of("0", {"delivered": 1000}, 1000) == {"delivered": None}
