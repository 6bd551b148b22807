"""A random life of a message table, compared with a naive model.

A life draws random steps on the virtual clock, with a real server:

- the application inserts, reschedules, acknowledges, locks and deletes rows by SQL, and alters the
  table;
- consumers join, leave, acknowledge, nack, release and extend;
- the database fails, connections break, brokers stop and crash;
- an owner whose lease has expired goes on, or hangs in a statement and then goes on;
- a broker with another log serves the table too.

The model (``tests/random_tables``) checks each delivery and, at the end, that no row is lost.

A failure prints its seed. ``ESCAPEMENT_SEED=n`` replays it. ``ESCAPEMENT_LIVES=a-b`` runs a range
of seeds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import trio

from escapement import testing
from escapement.broker.broker import BrokerConfig
from random_tables.troubles import Troubles
from support.database.outages import Outage
from support.seeds import play, seeds
from support.tables.shops import Shop
from support.trio_order import replayed

STEPS = int(os.environ.get("ESCAPEMENT_STEPS", "40"))
WEIGHTED = {
    "insert": 8,
    "reschedule": 4,
    "give_priority": 2,
    "set_epoch": 2,
    "acknowledge": 2,
    "delete": 2,
    "alter": 1,
    "lock": 2,
    "consume": 12,
    "join": 3,
    "leave": 2,
    "ack_rows": 1,
    "advance": 8,
    "calm": 2,
    "break_connections": 1,
    "trouble": 2,
    "crash": 1,
    "restart": 1,
    "overtaken": 1,
    "served_twice": 1,
}


def _seeds(usual: str) -> Sequence[int]:
    first, _, last = os.environ.get("ESCAPEMENT_LIVES", usual).partition("-")
    return seeds(range(int(first), int(last) + 1))


@pytest.mark.parametrize("seed", _seeds("0-5"))
async def test_random_life_of_a_table(
    shop: Shop, mock_clock: trio.testing.MockClock, seed: int
) -> None:
    """V4, V8, V9: a row is never sent early, to two consumers, or after its acknowledgement.

    And each row that is due is delivered in the end.
    """
    rng, log = random.Random(seed), Outage()
    config = replace(BrokerConfig(seed=0), tables=(shop.address,))
    with replayed(seed):
        async with (
            testing.start(config=config, engine=log.engine) as world,
            trio.open_nursery() as nursery,
        ):
            life = Troubles(world, shop, log, nursery, rng)
            await life.begin()
            await play(seed, rng, life, WEIGHTED, STEPS, life.check)
            await life.drain()
            await life.check()
            nursery.cancel_scope.cancel()
