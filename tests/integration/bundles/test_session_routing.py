"""What sessions tell clients about the brokers of other bundles, in commands of the protocol."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import trio.testing

from escapement.protocol import commands as wire
from escapement.storage.engine.base import Engine
from support.storage.bundle_brokers import full
from support.storage.cluster import Cluster, cluster
from support.wire_peer import hello, silent_peer


def named(found: Cluster, bundle_id: int) -> str:
    """Return the name of a topic that belongs to a bundle."""
    return next(n for n in map("t{}".format, range(100)) if found.bundle_of(full(n)) == bundle_id)


async def test_the_bundle_in_hello_chooses_the_broker(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: a node without this broker tells its address, in the way that the client understands."""
    async with cluster(sqlite, tmp_path) as found:
        front = found.nodes["b:7650"].front
        for features in ({}, {"moved": 1}, {"moved": 1, "bundle": 1}):
            async with silent_peer(front) as peer:
                (welcome,) = await peer.say(hello(**features))
                assert isinstance(welcome, wire.Welcome)
                assert welcome.limits["bundles"] == 2
                assert welcome.limits["bundle"] == 1
        async with silent_peer(front) as peer:
            moved, goodbye = await peer.say(hello(moved=1, bundle=0))
            assert moved == wire.Moved(0, 0, "a:7650", 1)
            assert isinstance(goodbye, wire.Goodbye)
        async with silent_peer(front) as peer:
            (refused,) = await peer.say(hello(bundle=0))
            assert isinstance(refused, wire.Refused)
            assert (refused.code, refused.retryable) == ("wrong_bundle", True)


async def test_welcome_tells_the_epoch_of_the_only_bundle(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: so the client forgets an earlier owner, which it would try first at each reconnect."""
    async with cluster(sqlite, tmp_path, addresses=("a:7650",), bundles=1) as found:
        for epoch in (1, 2):
            async with silent_peer(found.nodes["a:7650"].front) as peer:
                (welcome,) = await peer.say(hello(moved=1))
                assert isinstance(welcome, wire.Welcome)
                assert welcome.limits["epoch"] == epoch
                assert welcome.limits.keys().isdisjoint({"bundles", "bundle"})
            await found.move(0, "a:7650")


async def test_a_request_for_a_topic_of_another_bundle_is_answered_with_its_owner(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: Moved has no effect. A client of the version before hears Refused instead."""
    async with cluster(engine, tmp_path) as found:
        there, front = named(found, 1), found.nodes["a:7650"].front
        requests: list[wire.Command] = [
            wire.OpenProducer(5, 1, there, "p", -1),
            wire.Subscribe(5, 2, there, "s", "shared", "earliest", 0, "", None),
            wire.Admin(5, "topics.create", {"topic": there}),
            wire.Cancel(5, there, np.array([0])),
            wire.Read(5, there, 0, -1, 10),
        ]
        async with silent_peer(front) as new, silent_peer(front) as old:
            await new.say(hello(moved=1))
            await old.say(hello())
            for request in requests:
                assert await new.say(request) == [wire.Moved(5, 1, "b:7650", 1)]
                (refused,) = await old.say(request)
                assert isinstance(refused, wire.Refused)
                assert (refused.request_id, refused.code) == (5, "wrong_bundle")
            assert await new.say(wire.Lookup(6, there)) == [wire.Owner(6, 1, "b:7650", 1)]
            assert await new.say(wire.Lookup(7, named(found, 0))) == [wire.Owner(7, 0, "a:7650", 1)]
            async with silent_peer(found.nodes["a:7650"].front) as newest:
                await newest.say(hello(moved=1, bundles=1))
                assert await newest.say(wire.Lookup(6, there)) == [wire.Owner(6, 1, "b:7650", 1, 2)]
            (invalid,) = await new.say(wire.Lookup(8, "a/b"))
            assert isinstance(invalid, wire.Refused)
            assert invalid.code == "invalid_request"
        async with silent_peer(found.nodes["b:7650"].front) as peer:
            await peer.say(hello(moved=1, bundle=1))
            grant = {"role": "r", "pattern": "*", "actions": ["consume"]}
            assert await peer.say(wire.Admin(9, "grants.add", grant)) == [
                wire.Moved(9, 0, "a:7650", 1)
            ]


async def test_a_hand_over_ends_the_sessions_of_its_bundle_only(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: Moved comes after the last receipts; the other brokers of the process go on."""
    async with cluster(sqlite, tmp_path) as found:
        await found.move(1, "a:7650")
        front = found.nodes["a:7650"].front
        async with silent_peer(front) as new, silent_peer(front) as old, silent_peer(front) as rest:
            await new.say(hello(moved=1, bundle=1))
            await old.say(hello(bundle=1))
            await rest.say(hello(moved=1, bundle=0))
            await found.move(1, "b:7650")
            assert [new.heard[0], type(new.heard[1])] == [
                wire.Moved(0, 1, "b:7650", 2),
                wire.Goodbye,
            ]
            assert [type(one) for one in old.heard] == [wire.Goodbye]
            assert await rest.say(wire.Ping(4)) == [wire.Pong(4)]
        async with silent_peer(front) as peer:
            assert (await peer.say(hello(moved=1, bundle=1)))[0] == wire.Moved(0, 1, "b:7650", 3)


async def test_brokers_of_one_process_stop_at_the_same_time(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: each waits for the end of its own sessions. A new peer is refused meanwhile."""
    async with cluster(sqlite, tmp_path, addresses=("a:7650",)) as found:
        front, stopped = found.nodes["a:7650"].front, []
        brokers = list(found.nodes["a:7650"].brokers.values())

        async def stop(bundle_id: int) -> None:
            await found.stop(bundle_id)
            stopped.append(bundle_id)

        async with silent_peer(front) as zero, silent_peer(front) as one:
            await zero.say(hello(moved=1, bundle=0))
            await one.say(hello(moved=1, bundle=1))
            async with trio.open_nursery() as nursery:
                for bundle_id in (0, 1):
                    nursery.start_soon(stop, bundle_id)
                await trio.testing.wait_all_tasks_blocked()
                assert sorted(stopped) == [0, 1]
            assert zero.heard[0] == wire.Moved(0, 0, "", 1)
        assert [front.count_of(broker) for broker in brokers] == [0, 0]
        async with silent_peer(front) as late:
            assert (await late.say(hello(moved=1)))[0] == wire.Moved(0, 0, "", 1)
