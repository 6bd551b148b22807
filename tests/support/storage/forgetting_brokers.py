"""A broker whose log forgets old generations: its topic, and steps that move the clock by a day."""

from __future__ import annotations

from datetime import timedelta

import escapement
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.storage.engine.existing import tables
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish, lose_index

DAY_MS = 86_400_000
YEAR = timedelta(days=365)
NAMESPACE = "t/n"
TOPIC = "t/n/x"
PARALLELISM = 2
PATIENT = BrokerConfig(
    ack_wait_ms=10**12,
    limits=BrokerLimits(max_delay_ms=10**12),
    table_parallelism=PARALLELISM,
    seed=0,
)


def generations(engine: Engine) -> list[int]:
    """Return the generations of the log, after checking that the log has no other tables.

    Tables of table sets may exist ahead, and those of a free set have no rows.
    """
    connection = engine.connect()
    try:
        found = connection.execute("SELECT id, parallelism FROM generations ORDER BY id").rows
        sets = connection.execute("SELECT id, table_count, generation FROM table_sets").rows
        used = [generation for _, _, generation in sets if generation]
        assert len(used) == len(set(used))
        assert set(used) <= {id for id, _ in found}
        names = {
            f"log_{id}_{shard}"
            for id, parallelism in found
            if id not in used
            for shard in range(parallelism)
        }
        for id, count, generation in sets:
            ahead = [f"log_set_{id}_{shard}" for shard in range(count)]
            names |= set(ahead)
            if not generation:
                for table in ahead:
                    assert connection.execute(f"SELECT 1 FROM {table} LIMIT 1").rows == []
        there = tables(engine, connection)
        assert {name for name in there if name[:4] == "log_"} - {"log_identity"} == names
        marks = "SELECT COUNT(*) FROM removals WHERE kind = 'generation'"
        assert connection.execute(marks).rows == [(0,)]
        return [id for id, _ in found]
    finally:
        connection.close()


async def take(
    broker: escapement.Broker, name: str = "s", kind: str = "shared", most: int = 10**6
) -> list[bytes]:
    """Return the values of messages that have arrived, after acknowledging them durably."""
    found: list[bytes] = []
    async with broker.consumer(TOPIC, name, kind=kind, permits=1000) as inbox:
        while len(found) < most and (messages := (await arrived(inbox))[: most - len(found)]):
            await inbox.ack([m.id for m in messages], durable=True)
            found += [m.value for m in messages]
    return found


async def a_day_later(world: World) -> None:
    """Start a new generation and run a round of the forgetter."""
    await roll(world)
    await forget(world)


async def roll(world: World) -> None:
    """Move the clock a day ahead, so that the log starts a new generation."""
    world.clock.set_back(-DAY_MS)
    await finish(world, world.server.services.housekeeper.round)


async def forget(world: World) -> None:
    """Run a round of the forgetter, which deletes old generations."""
    await finish(world, world.server.services.forgetter.round)


async def restart_without_index(world: World) -> None:
    """Crash and restart without an index, so that the broker rebuilds it from the log."""
    await world.crash()
    lose_index(world)
    await world.restart()


async def begin(broker: escapement.Broker, retention: str = "0s") -> escapement.Producer:
    """Create a topic with a subscription, in a namespace with that retention."""
    await broker.admin("namespaces.create", namespace=NAMESPACE)
    await broker.admin("namespaces.update", namespace=NAMESPACE, policy={"retention_ms": retention})
    await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
    return await broker.producer(TOPIC)


async def subscribe(broker: escapement.Broker, name: str, kind: str) -> None:
    """Create a subscription at the earliest position."""
    options = {"kind": kind, "position": "earliest"}
    await broker.admin("subscriptions.create", topic=TOPIC, subscription=name, **options)
