"""A random workload on one broker, compared with a naive model.

The workload draws random steps on the virtual clock:

- messages with keys, priorities and dedup keys, cancelling, rescheduling, both at once, redriving
  dead letters;
- subscriptions of every kind, seeks, consumers that join, leave, ask for key ranges, acknowledge,
  return messages or let them time out;
- pauses, rates, bounds, times-to-live and quotas that change;
- checkpoints, deletion of log generations, crashes at any moment, clean restarts, a lost index, a
  clock that is set, a database that fails, and owners that take turns with an index each.

The bounds are so small that the workload reaches all of them. The model
(``tests/random_workloads``) has the messages that each subscription must get, their order, and its
durable acknowledgements. The test compares every delivery and drop, and the final state.

A failure prints its seed. ``ESCAPEMENT_SEED=n`` replays it. ``ESCAPEMENT_WORKLOADS=a-b`` runs a
range of seeds. ``ESCAPEMENT_STEPS=300`` makes each workload longer.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from random_workloads.ending import Ending
from random_workloads.events import Events
from random_workloads.held_commits import HeldCommits
from random_workloads.lost_indexes import LostIndexes
from random_workloads.model import ACK_WAIT_MS
from random_workloads.quotas import Quotas
from random_workloads.same_tick import SameTick
from support.database.outages import Outage
from support.faults.held_calls import Held
from support.seeds import named, seeds
from support.trio_order import replayed


def _seeds(usual: str) -> range:
    first, _, last = os.environ.get("ESCAPEMENT_WORKLOADS", usual).partition("-")
    return seeds(range(int(first), int(last) + 1))


STEPS = int(os.environ.get("ESCAPEMENT_STEPS", "60"))
TIGHT = BrokerConfig(
    ack_wait_ms=ACK_WAIT_MS,
    limits=BrokerLimits(
        ready_messages=12, deliver_messages=5, window_messages=16, backfill_step_bytes=1
    ),
    seed=0,
)


class Workload(SameTick, HeldCommits, LostIndexes, Quotas, Events, Ending):
    """A workload with all steps."""


# Steps that move the clock themselves, or stop the broker.
MOVES_TIME = {
    "advance", "same_tick", "set_clock", "forget", "crash", "crash_during_step", "trouble",
    "restart", "lose_index", "fill_slowly", "other_disk", "checkpoint_before_commit",
}  # fmt: skip
WEIGHTED = {
    "publish": 10,
    "same_tick": 5,
    "post": 3,
    "advance": 8,
    "consume": 16,
    "subscribe": 8,
    "seek": 3,
    "leave": 2,
    "unsubscribe": 2,
    "cancel": 3,
    "reschedule": 4,
    "race": 2,
    "redrive": 2,
    "total": 2,
    "neighbour": 2,
    "settings": 6,
    "limits": 3,
    "pause": 1,
    "resume": 2,
    "checkpoint": 4,
    "forget": 3,
    "ticks": 2,
    "set_clock": 1,
    "crash": 1,
    "crash_during_step": 4,
    "checkpoint_before_commit": 4,
    "trouble": 4,
    "restart": 1,
    "lose_index": 1,
    "fill_slowly": 2,
    "other_disk": 1,
}

# The lowest weights: without these steps a workload would test nothing.
FLOOR = [6 * (name in ("publish", "advance", "consume", "subscribe")) for name in WEIGHTED]


@pytest.mark.parametrize("seed", _seeds("0-15"))
async def test_random_workload_keeps_the_invariants(
    mock_clock: trio.testing.MockClock, tmp_path: Path, seed: int
) -> None:
    """Invariants 1 to 8, P4 to P7, P10, P11, V1 to V6, V16, V18, Q3, Q7 to Q9, N3, N5, O7.

    And B1, B3.
    """
    with replayed(seed):
        await run_workload(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", _seeds("0-15"))
async def test_random_workload_keeps_the_invariants_on_mysql(
    mock_clock: trio.testing.MockClock, mysql_url: str, tmp_path: Path, seed: int
) -> None:
    """The same on MySQL, with the locks, types and clock of a server."""
    engine = open_engine(mysql_url, tmp_path)
    try:
        with replayed(seed):
            await run_workload(seed, tmp_path, engine)
    finally:
        engine.close()


async def run_workload(seed: int, elsewhere: Path, database: Engine | None = None) -> None:
    """Run one workload, without a database on one in memory."""
    rng, outage, held = random.Random(seed), Outage(database), Held()
    async with (
        testing.start(config=TIGHT, engine=outage.engine, run=held) as world,
        trio.open_nursery() as nursery,
    ):
        workload = Workload(world, outage, nursery, rng)
        workload.held = held
        workload.disks = [world.index_directory, elsewhere]
        await workload.open()
        # Each workload prefers other steps, so that rare steps meet each other.
        weights = [weight * rng.choice([0, 1, 1, 4]) for weight in WEIGHTED.values()]
        weights = [w or floor for w, floor in zip(weights, FLOOR, strict=True)]
        done: list[str] = []
        try:
            with named(seed, done):
                for _ in range(STEPS):
                    await workload.settle()
                    (name,) = rng.choices(list(WEIGHTED), weights)
                    done.append(name)
                    step = getattr(workload, name)
                    await (step() if name in MOVES_TIME else workload.patiently(step))
                await workload.drain()
        finally:
            outage.over()
            await workload.patiently(workload.close)
