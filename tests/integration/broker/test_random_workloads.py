"""Random steps on one broker, each compared with an exact model: a workload of the simulation.

- Messages with keys, priorities and dedup keys are published, cancelled, rescheduled, both at once,
  and redriven.
- Subscriptions of every kind are sought. Consumers join, leave, ask for key ranges, acknowledge,
  return messages or let them time out.
- Pauses, rates, bounds, times-to-live and quotas change.
- The broker writes checkpoints, deletes log generations, crashes at any moment, restarts and loses
  its index. The clock is set, the database fails, and two brokers take turns with an index each.

A failure prints its steps. `make simulate WORKLOAD=exact SEEDS=1 FIRST=n` repeats seed n.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from escapement.storage.engine.open import open_engine
from simulation.exact.run import run
from support.seeds import seeds

# Seed 19 is the first that finds a cancel without effect, and 31 the first for ignored priorities.
SEEDS = seeds([*range(14), 19, 31])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_workload_keeps_the_invariants(seed: int) -> None:
    """Invariants 1 to 8, P4 to P7, P10, P11, V1 to V6, V16, V18, Q3, Q7 to Q9, N3, N5, O7.

    And B1, B3.
    """
    report = run(seed)
    assert report.violations == []
    assert report.operations > 30
    assert report.faults > 0


def test_seed_of_the_exact_model_repeats() -> None:
    """A failure can be examined, because its seed does the same again."""
    first, second = (run(1, steps=20) for _ in range(2))
    assert first.violations == second.violations == []
    assert first.history is not None
    assert second.history is not None
    assert first.history.counts == second.history.counts
    assert first.days == second.days


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_random_workload_keeps_the_invariants_on_mysql(
    mysql_url: str, tmp_path: Path, seed: int
) -> None:
    """The same on MySQL, with the locks, types and clock of a server."""
    engine = open_engine(mysql_url, tmp_path)
    try:
        assert run(seed, database=engine).violations == []
    finally:
        engine.close()
