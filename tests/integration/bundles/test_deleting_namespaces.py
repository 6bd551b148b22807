"""Deletion of a namespace with topics in several bundles, also if brokers crash during it."""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

import trio.testing

from escapement.broker.broker import BrokerConfig
from escapement.errors import EscapementError
from escapement.names import NamespaceName
from escapement.storage.engine.base import Engine
from escapement.testing import World
from support.faults.dying_brokers import DiesAt, finish
from support.storage.bundle_brokers import BUNDLES, brokers, names
from support.storage.cluster import cluster, connected, named, result
from support.storage.commit_pipelines import FaultyEngine, no_fault

GOING = NamespaceName.parse("a/b")
KEPT = [names("c/d/x", bundle_id, 1)[0] for bundle_id in range(BUNDLES)]


async def fill(worlds: list[World]) -> None:
    """Create topics with messages in all bundles, and schedules in and into the namespace."""
    for bundle_id, world in enumerate(worlds):
        async with world.connect() as broker:
            for topic in names(f"{GOING.full}/x", bundle_id, 2):
                await broker.admin("subscriptions.create", topic=topic, subscription="s")
                async with await broker.producer(topic) as producer:
                    await producer.send_many([b"now", b"later"], delay=[None, "1h"])
            await broker.schedules.create(f"c/d/into{bundle_id}", topic, every="1h")
            await broker.schedules.create(
                f"{GOING.full}/out{bundle_id}", KEPT[bundle_id], every="1h"
            )


async def refresh(worlds: list[World]) -> None:
    """Let all brokers read what they share, as a node does when the catalog has changed."""
    for world in worlds:
        with suppress(EscapementError):
            await world.server.refresh_catalog()


async def is_gone(worlds: list[World]) -> None:
    """Refresh the brokers until none has the namespace."""
    while any(world.server.registry.namespaces.get(GOING) for world in worlds):
        await refresh(worlds)
        await trio.sleep(0.5)


def left(engine: Engine) -> list[list[tuple[object, ...]]]:
    """Return the namespaces, the bundles of topics, the schedules and the marks of namespaces."""
    with closing(engine.connect()) as connection:
        return [
            [tuple(row) for row in connection.execute(statement).rows]
            for statement in (
                "SELECT tenant, name FROM namespaces",
                "SELECT bundle_id FROM topics ORDER BY bundle_id",
                "SELECT id FROM schedules",
                "SELECT id FROM removals WHERE kind = 'namespace'",
            )
        ]


async def test_crashes_at_any_step_leave_nothing_of_a_namespace_of_several_bundles(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """Q7: the next brokers continue the deletion, and spare other namespaces."""
    faulty = FaultyEngine(engine)

    async def delete(worlds: list[World]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(is_gone, worlds)
            with suppress(EscapementError):
                await worlds[0].server.services.deletion.namespace(GOING)
            nursery.cancel_scope.cancel()

    async with brokers(faulty, tmp_path, BrokerConfig(seed=0)) as worlds:
        for number in count(3, 19 if engine.kind == "sqlite" else 41):
            await fill(worlds)
            dies = DiesAt(number)
            with trio.move_on_after(5):
                faulty.before = dies
                await finish(worlds[0], partial(delete, worlds))
            for world in worlds:
                await world.crash()
            faulty.before = no_fault
            for world in worlds:
                await world.restart()
            namespaces = worlds[0].server.registry.namespaces
            if namespaces.get(GOING) and not namespaces.deleting:  # the mark was not stored
                await finish(worlds[0], partial(delete, worlds))
            await finish(worlds[0], partial(is_gone, worlds))
            assert left(engine) == [[("c", "d")], [(0,), (1,), (2,)], [], []]
            if not dies.dead:
                break
        assert number > 20


async def test_a_namespace_is_deleted_when_the_owner_of_its_last_topics_is_back(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """Q7: nothing is created in it meanwhile, and the client counts what all bundles have."""
    async with brokers(engine, tmp_path, BrokerConfig(seed=0)) as worlds:
        await fill(worlds)
        await worlds[2].crash()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worlds[0].server.services.deletion.namespace, GOING)
            await worlds[0].clock.advance(seconds=3)
            await refresh(worlds[:2])
            await worlds[0].clock.advance(seconds=3)
            assert left(engine)[1] == [(0,), (1,), (2,), (2,), (2,)]
            await worlds[2].restart()
            await worlds[0].clock.advance(seconds=3)
        assert left(engine) == [[("c", "d")], [(0,), (1,), (2,)], [], []]


async def test_a_client_deletes_a_namespace_of_several_bundles(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """Q7: it shows the numbers of all bundles."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        for bundle_id, number in ((0, 1), (1, 2)):
            for topic in named(found, bundle_id, number, prefix=f"{GOING.full}/x"):
                await client.admin("subscriptions.create", topic=topic, subscription="s")
        ask = partial(client.admin, "namespaces.delete", namespace=GOING.full)
        said = await ask(dry_run=True)
        assert (said["would_delete"], said["topics"], said["subscriptions"]) == (GOING.full, 3, 3)

        async def follow() -> None:
            while True:
                await trio.sleep(0.5)
                for node in found.nodes.values():
                    for broker in node.brokers.values():
                        await broker.refresh_catalog()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            done = await result(found, partial(ask, force=True))
            nursery.cancel_scope.cancel()
        assert (done["deleted"], done["topics"], done["subscriptions"]) == (GOING.full, 3, 3)
        assert left(sqlite) == [[], [], [], []]
