"""A broker whose log forgets old generations: its topic, and steps that move the clock by a day."""

from __future__ import annotations

from datetime import timedelta

import escapement
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.storage.engine.base import Engine
from escapement.testing import World, arrived
from support.faults.dying_brokers import finish, lose_index

DAY_MS = 86_400_000
YEAR = timedelta(days=365)
NAMESPACE = "t/n"
TOPIC = "t/n/x"
PATIENT = BrokerConfig(
    ack_wait_ms=10**12, limits=BrokerLimits(max_delay_ms=10**12), table_parallelism=2, seed=0
)


def generations(engine: Engine) -> list[int]:
    """Return the generations of the log, after checking that the log has no other tables."""
    connection = engine.connect()
    try:
        found = connection.execute("SELECT id, parallelism FROM generations ORDER BY id").rows
        names = {f"log_{id}_{shard}" for id, parallelism in found for shard in range(parallelism)}
        if engine.kind == "sqlite":
            query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        else:
            query = (
                "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
            )
        tables = {name for (name,) in connection.execute(query).rows if name[:4] == "log_"}
        assert tables - {"log_identity"} == names
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
