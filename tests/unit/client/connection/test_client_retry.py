"""The waits between the attempts to reach a broker."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.client.connection.retry import EARLY_S, LONGEST_EARLY_WAIT_S, Retry


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_retry_waits_have_full_jitter_and_restart_after_success(chances: list[float]) -> None:
    """Each wait is a fraction of a doubling bound, and below a second in the first minute."""
    left = iter([*chances, 1.0, *chances])
    retry = Retry(0.1, 10, lambda: next(left))
    now_s, bound_s = 1_000.0, 0.1
    for chance in chances:
        early = now_s - 1_000.0 < EARLY_S
        bound_s = min(bound_s, LONGEST_EARLY_WAIT_S if early else 10)
        wait_s = retry.next_s(now_s)
        assert wait_s == bound_s * chance
        assert wait_s < 1 or not early
        now_s, bound_s = now_s + wait_s + 1.0, 2 * bound_s
    retry.succeeded()
    assert retry.next_s(now_s) == 0.1


@pytest.mark.parametrize("outage_s", [0.5, 3.0, 20.0, 50.0])
def test_nine_clients_in_ten_reconnect_soon_after_a_broker_returns(outage_s: float) -> None:
    """B5: 0.7 s, minus the time to connect, to open a producer and to publish."""
    chance = random.Random(1).random
    late_s = []
    for _ in range(2_000):
        retry, now_s = Retry(0.1, 10.0, chance), chance() * 0.1
        while now_s < outage_s:
            now_s += retry.next_s(now_s)
        late_s.append(now_s - outage_s)
    assert sorted(late_s)[1_800] < 0.55
