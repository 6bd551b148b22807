"""When tables are polled, and how far ahead their polls look."""

from __future__ import annotations

from random import Random

import pytest

from escapement.broker.tables.polling import IDLE_S, Pace

SECONDS = 100


def polls_of(paces: list[Pace], statements: int) -> int:
    """Return how many polls idle tables have in ``SECONDS``. Each looks ahead until the next."""
    ahead_s = {pace: pace.next_s for pace in paces}
    now_s, polls = 0.0, 0
    while now_s < 2 * SECONDS:
        now_s = min(pace.next_s for pace in paces)
        polls += now_s > SECONDS  # when the intervals grow no more
        for pace in paces:
            if pace.joins_s <= now_s:
                assert now_s <= ahead_s[pace]
                ahead_s[pace] = now_s + pace.ahead_s
                pace.polled(now_s + 0.001, 0.001, False, False, statements)
    return polls


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("statements", [1, 3])
def test_idle_tables_come_to_share_their_polls(seed: int, statements: int) -> None:
    """V9: a database gets two statements a second, whatever the intervals of its tables are."""
    rng = Random(seed)
    paces = [Pace(rng.choice([0.1, 0.5, rng.uniform(0.5, 60)])) for _ in range(20)]
    for pace in paces:
        pace.next_s = rng.uniform(0, 10)
    assert polls_of(paces, statements) * statements <= 1.05 * SECONDS / IDLE_S
