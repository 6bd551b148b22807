"""The messages per second between two measurements."""

from __future__ import annotations

from escapement.broker.load import Load


def test_load_is_the_messages_per_second_since_the_last_measurement() -> None:
    """B8."""
    load = Load(5_000)
    assert load.measure(8_000, 300) == 100
    assert load.measure(12_000, 500) == 50
    assert load.measure(15_000, 500) == 0
    assert load.measure(17_000, 503) == 2  # rounded


def test_measurement_a_moment_after_another_one_counts_for_the_next() -> None:
    """B8: a renewal that follows another one at once tells nothing about the load."""
    load = Load(0)
    assert load.measure(0, 7) == 0
    assert load.measure(2_000, 400) == 200
    assert load.measure(2_000, 450) == 200
    assert load.measure(2_999, 1_000) == 200
    assert load.measure(4_000, 1_400) == load.per_s == 500
