"""The stress test for five minutes on each engine."""

from __future__ import annotations

import pytest

from stress.run import ENGINES, run


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_no_promise_is_broken_in_five_minutes_of_kills(engine: str) -> None:
    """P6, V1, V2, Q9, Q10, B1: kills, damage, outages, slow commits and retention, under load.

    The run must also have shown each of these.
    """
    assert run(minutes=5, engine=engine, seed=21) == 0
