"""One run: random steps on one broker, each compared with the model, then the check of the end."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Final

import trio
import trio.testing

from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World
from escapement.testing.clock import VirtualClock
from histories.history import History
from simulation.clocks import TrueClock
from simulation.database import Server, SimulatedEngine
from simulation.disk import Disk
from simulation.exact.ending import Ending
from simulation.exact.events import Events
from simulation.exact.held_commits import HeldCommits
from simulation.exact.lost_indexes import LostIndexes
from simulation.exact.model import ACK_WAIT_MS
from simulation.exact.quotas import Quotas
from simulation.exact.same_tick import SameTick
from simulation.exact.workload import index_on
from simulation.files import simulated
from simulation.report import Report, report_of
from support.faults.held_calls import Held

STEPS: Final = 60
# Bounds so small that a run reaches all of them.
_TIGHT: Final = BrokerConfig(
    ack_wait_ms=ACK_WAIT_MS,
    limits=BrokerLimits(
        ready_messages=12,
        deliver_messages=5,
        window_messages=16,
        backfill_step_bytes=1,
        # Virtual time advances in large steps, so these must not end anything.
        handshake_timeout_s=1e9,
        idle_timeout_s=1e9,
        checkpoint_interval_s=1e9,
        lease_ms=10**12,
    ),
    seed=0,
)
# Steps in which something fails.
_FAULTS: Final = {
    "set_clock", "crash", "crash_during_step", "trouble", "lose_index", "fill_slowly", "other_disk",
    "checkpoint_before_commit",
}  # fmt: skip
# Steps that move the clock themselves, or stop the broker.
_MOVES_TIME: Final = _FAULTS | {"advance", "same_tick", "forget", "restart"}
_WEIGHTS: Final = {
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
# Without these steps a run would test nothing. This is their lowest weight.
_LEAST: Final = dict.fromkeys(("publish", "advance", "consume", "subscribe"), 6)


class _Workload(SameTick, HeldCommits, LostIndexes, Quotas, Events, Ending):
    """A workload with all steps."""


def run(seed: int, steps: int = STEPS, database: Engine | None = None) -> Report:
    """Run one seed, by default on SQLite."""
    clock = trio.testing.MockClock()
    return report_of(partial(_live, steps, database), seed, clock)


async def _live(
    steps: int, database: Engine | None, report: Report, root: Path, clock: trio.testing.MockClock
) -> None:
    report.history = history = History(TrueClock(clock))
    wall_clock, held = VirtualClock(), Held()
    rng, chance = random.Random(report.seed), random.Random(f"{report.seed} faults")
    server = Server(database or SqliteEngine(root / "log.sqlite3"), wall_clock.now_ms, chance)
    engine = SimulatedEngine(server)
    disks = [Disk(root / name, chance) for name in ("one", "two")]
    with simulated(disks, server.locks):
        async with trio.open_nursery() as tasks:
            world = World(tasks, wall_clock, engine, index_on(disks[0]), _TIGHT, held)
            await world.restart()
            async with trio.open_nursery() as nursery:
                workload = _Workload(world, server, engine, disks, nursery, rng, history)
                workload.held = held
                await _step(workload, steps, report)
            tasks.cancel_scope.cancel()


async def _step(workload: _Workload, steps: int, report: Report) -> None:
    """Do random steps, and then all that is left."""
    rng, history = workload.rng, workload.history
    # Each workload prefers other steps, so that rare steps meet each other.
    weights = {name: weight * rng.choice([0, 1, 1, 4]) for name, weight in _WEIGHTS.items()}
    weights = {name: weight or _LEAST.get(name, 0) for name, weight in weights.items()}
    await workload.open()
    done: list[str] = []
    try:
        for _ in range(steps):
            await workload.settle()
            (name,) = rng.choices(list(weights), list(weights.values()))
            done.append(name)
            (history.faults if name in _FAULTS else history.counts)[name] += 1
            step = getattr(workload, name)
            await (step() if name in _MOVES_TIME else workload.patiently(step))
        await workload.drain()
    except Exception:
        report.violations.append("the steps were " + " ".join(done))
        raise
    finally:
        workload.heal()
        await workload.patiently(workload.close)
