"""Group commits of several bundles in shared transactions, with faults that a seed chooses."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from escapement.errors import OutcomeUnknown, StorageUnavailable
from escapement.storage.commit.items import Acks
from escapement.storage.commit.lane import State
from escapement.storage.engine.base import Engine, TransactionAborted
from escapement.storage.journal import journal
from support.seeds import seeds
from support.storage.commit_pipelines import (
    AtStep,
    FaultyEngine,
    House,
    Once,
    check_promises,
    column,
    no_fault,
    sharing,
)
from support.storage.shared_commits import tickets_of, topics_of

ROUNDS = 25
# The steps of some transactions: two of each lane, the shared ones, and new connections.
STEPS = 40


def arm(faulty: FaultyEngine, rng: random.Random) -> None:
    """Let one or two of the next steps fail."""
    faulty.before = faulty.after = no_fault
    kind = rng.choice(["cut", "abort", "unsent commit", "lost reply", "none"])
    if kind == "cut":
        faulty.before = AtStep(rng.randint(1, STEPS), StorageUnavailable("cut by the test"))
    elif kind == "abort":
        faulty.before = AtStep(rng.randint(1, STEPS), TransactionAborted("locked by the test"))
    elif kind != "none":
        fault = Once("commit", OutcomeUnknown("no reply"), times=rng.choice([1, 1, 2]))
        setattr(faulty, "before" if kind == "unsent commit" else "after", fault)
        fault.arm()


def acknowledged(engine: Engine, bundle_id: int) -> list[int]:
    """Return the offsets that the journal of a bundle has as acknowledged, in its order."""
    connection = engine.connect()
    entries = [row.entry for row in journal.read(connection, bundle_id)]
    connection.close()
    return [n for entry in entries for acked in entry.acks for n in acked.offsets.tolist()]


@pytest.mark.parametrize("seed", seeds(range(6)))
async def test_random_faults_lose_and_repeat_nothing(
    engine: Engine, seed: int, autojump_clock: MockClock
) -> None:
    """Invariant 1: each message is stored once if confirmed, and not at all if it failed."""
    rng = random.Random(seed)
    faulty = FaultyEngine(engine)
    done: dict[int, list[int]] = {}

    async def append(house: House, topic: int, number: int) -> None:
        await trio.sleep(rng.choice([0, 0, 0.001]))
        await house.until(State.UP)
        ticket = house.append(topic, b"%d.%d" % (topic, number))
        house.pipeline.submit(Acks(topic, topic, column(number)))
        done.setdefault(house.lease.bundle_id, []).append(number)
        await ticket.done.wait()

    async with sharing(faulty, 3) as (houses, _):
        topics = await topics_of(houses)
        for number in range(100, 100 + ROUNDS):
            arm(faulty, rng)
            async with trio.open_nursery() as nursery:
                for house, topic in zip(houses, topics, strict=True):
                    if rng.random() < 0.8:
                        nursery.start_soon(append, house, topic, number)
        faulty.before = faulty.after = no_fault
        for house in houses:
            await house.pipeline.drain()
            assert house.ended is None
        check_promises(engine, tickets_of(houses))
        for house in houses:
            bundle_id = house.lease.bundle_id
            found = [n for n in acknowledged(engine, bundle_id) if n >= 100]
            assert found == done[bundle_id], "an ack is lost, repeated or out of order"
