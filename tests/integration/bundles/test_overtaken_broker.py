"""A broker whose topics another process has taken, as after a hang longer than its lease."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio
import trio.testing

from escapement.protocol import commands as wire
from escapement.storage import lease as leases
from escapement.storage import members
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.storage.lease import Identity
from escapement.testing.clock import START_MS, VirtualClock
from support.storage.cluster import connected
from support.storage.running_nodes import Running, made
from support.wire_peer import WirePeer, hello, silent_peer

HOUR_MS: Final = 3_600_000


def take(engine: Engine, clock: VirtualClock) -> None:
    """Let another process take the bundle, as if the node had hung for longer than its lease."""
    with closing(engine.connect()) as connection:
        connection.execute("UPDATE brokers SET expires_at_ms = 1")
    other = members.register(engine, Identity("b" * 32, "b:7650"), HOUR_MS, clock, "b:7650")
    leases.take(engine, other, clock)


async def consume(peer: WirePeer) -> list[int]:
    """Create a consumer with many permits. Return the offsets that it gets at once."""
    await peer.say(wire.Subscribe(1, 1, "t", "s", "shared", "earliest", 0, "", None))
    return delivered(await peer.say(wire.Flow(1, 100)))


def delivered(heard: list[wire.Command]) -> list[int]:
    return [n for one in heard if isinstance(one, wire.Deliver) for n in one.offsets.tolist()]


@pytest.fixture
def database(mysql_url: str, tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(mysql_url, tmp_path)
    yield engine
    engine.close()


async def test_ack_is_not_confirmed_if_another_process_owns_the_topic(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Q8: the connection ends in place of an answer. Dispatch stops, too."""
    clock = VirtualClock(START_MS)
    async with trio.open_nursery() as nursery:
        running = Running(nursery, clock)
        node = made(database, tmp_path / "a", "a", clock, 1, lease_ms=HOUR_MS)
        await running.start("a:7650", node)
        async with connected(running) as client:
            producer = await running.result(partial(client.producer, "t"))
            for delay_ms in (0, 3_000):
                await running.result(partial(producer.send, b"m", delay=(delay_ms, "ms")))
        async with silent_peer(node.front) as peer:
            await peer.say(hello())
            assert await consume(peer) == [0]
            take(database, clock)
            said = await peer.say(wire.Ack(7, 1, np.array([0])))
            await clock.advance(seconds=5)
            said += peer.heard
            assert not [one for one in said if isinstance(one, wire.Acked)]
            assert delivered(said) == []
            assert not node.brokers
            with pytest.raises(trio.BrokenResourceError):
                await peer.say(wire.Ping(1))
        assert not node.stopped.is_set()
        nursery.cancel_scope.cancel()


async def test_client_repeats_an_ack_at_the_process_that_owns_the_topic_now(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Q8, B8: the ack takes effect once, and the application sees a pause."""
    clock = VirtualClock(START_MS)
    async with trio.open_nursery() as nursery:
        running = Running(nursery, clock)
        nodes = {
            name: made(database, tmp_path / name, name, clock, 1, lease_ms=HOUR_MS) for name in "ab"
        }
        for name, node in nodes.items():
            await running.start(f"{name}:7650", node)
        async with connected(running, "a", "b") as client, client.consumer("t", "s") as inbox:
            producer = await running.result(partial(client.producer, "t"))
            await running.result(partial(producer.send, b"m"))
            message = await running.result(inbox.__anext__)
            with closing(database.connect()) as connection:
                connection.execute("UPDATE brokers SET expires_at_ms = 1 WHERE name = 'a:7650'")
            await running.until(lambda: len(nodes["b"].brokers) == 1)
            assert len(nodes["a"].brokers) == 1, "it knows already that it is stale"
            assert await running.result(partial(inbox.ack, message, durable=True)) == 1
            assert not nodes["a"].brokers
        nursery.cancel_scope.cancel()
