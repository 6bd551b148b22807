"""The verbs that show and change which node owns which bundle, asked of one broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from importlib.metadata import version
from typing import Any

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.cli.admin.cluster import until_empty, until_moved
from escapement.cli.output.progress import ProgressLine
from escapement.errors import Conflict, InvalidRequest, NotFound
from escapement.storage import lease, members
from escapement.storage.bundles import divide_new_database, set_bundle_count
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.lease import Identity
from escapement.storage.members import Member
from escapement.storage.ownership import look_at_all
from escapement.testing import World

HOUR_MS = 3_600_000


@asynccontextmanager
async def broker_of(engine: Engine) -> AsyncIterator[tuple[World, escapement.Broker, str]]:
    """Run a broker; provide a client and the id of the broker's node."""
    async with testing.start(engine=engine) as world, world.connect() as broker:
        ((node,),) = [(one["id"],) for one in (await status(broker))["nodes"]]
        yield world, broker, node


async def status(broker: escapement.Broker) -> dict[str, Any]:
    return await broker.admin("cluster.status")  # type: ignore[no-any-return]


def join(engine: Engine, world: World, name: str) -> Member:
    """Register another node, which takes no bundles."""
    identity = Identity(f"{name}-{'0' * 8}", f"{name}:7650", name)
    return members.register(engine, identity, HOUR_MS, world.clock, f"{name}.example:7650")


async def test_status_shows_live_nodes_and_the_owner_of_each_bundle(
    engine: Engine, connection: Connection, mock_clock: trio.testing.MockClock
) -> None:
    """B8: any broker answers for all nodes."""
    async with broker_of(engine) as (world, broker, here):
        answer = await broker.admin("cluster.bundles", count=3)
        assert answer == {"bundles": 3, "before": 1, "warning": None}
        other = join(engine, world, "other")
        found = await status(broker)
        mine, theirs = sorted(found["nodes"], key=lambda one: not one["here"])
        assert (mine["id"], mine["bundles"], theirs["here"]) == (here, 1, False)
        assert theirs["left_ms"] > HOUR_MS / 2
        del theirs["left_ms"]
        assert theirs == {
            "id": "other-00000000",
            "name": "other:7650",
            "address": "other.example:7650",
            "version": version("escapement"),
            "draining": False,
            "bundles": 0,
            "load_per_s": 0,
            "here": False,
        }
        assert found["bundles"][0] == {
            "bundle": 0,
            "owner": mine["name"],
            "owner_id": here,
            "address": mine["address"],
            "epoch": 1,
            "free": False,
            "pinned_to": None,
            "pinned_to_id": None,
        }
        assert [(one["owner"], one["free"]) for one in found["bundles"][1:]] == [(None, True)] * 2
        members.leave(connection, other)
        assert [one["id"] for one in (await status(broker))["nodes"]] == [here]


async def test_a_node_drains_until_it_is_undrained_or_restarted(
    engine: Engine, connection: Connection, mock_clock: trio.testing.MockClock
) -> None:
    """B8: its renewals leave the mark, and a node that would be the last one cannot be drained."""
    async with broker_of(engine) as (world, broker, here):

        def draining() -> set[str]:
            nodes, _ = look_at_all(engine, connection)
            return {one.name for one in nodes.values() if one.draining}

        with pytest.raises(Conflict, match="No other node can take the bundles"):
            await broker.admin("cluster.drain", node=here)
        other = join(engine, world, "other")
        for name in ("other:7650", "other.example:7650", "other-00000000", "other-"):
            assert (await broker.admin("cluster.drain", node=name))["draining"]
            members.renew(engine, connection, other, world.clock)
            assert draining() == {"other:7650"}
            assert not (await broker.admin("cluster.undrain", node=name))["draining"]
            assert not draining()
        await broker.admin("cluster.drain", node="other:7650")
        with pytest.raises(Conflict, match="all others are draining"):
            await broker.admin("cluster.drain", node=here)
        assert draining() == {"other:7650"}
        join(engine, world, "other")
        assert not draining()


async def test_a_command_waits_for_a_drain_until_it_ends_or_cannot(
    engine: Engine, connection: Connection, mock_clock: trio.testing.MockClock
) -> None:
    """B8: a node that takes its bundles back, or that must keep them, is an error."""
    async with broker_of(engine) as (world, broker, here):
        await broker.admin("cluster.bundles", count=2)
        other = join(engine, world, "other")
        held = lease.take(engine, other, world.clock, 1)
        outcomes: list[str] = []

        async def wait() -> None:
            try:
                await until_empty(broker, "other-00000000", ProgressLine())
                outcomes.append("empty")
            except Conflict as error:
                outcomes.append(str(error))

        async def outcome(change: Callable[[], Any]) -> str:
            await broker.admin("cluster.drain", node="other:7650")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await world.clock.advance(seconds=1)
                assert not outcomes, "it did not wait"
                change()
                await world.clock.advance(seconds=1)
            return outcomes.pop()

        undrained = await outcome(lambda: members.set_draining(connection, other.key, False))
        assert "was undrained or restarted" in undrained
        (mine,) = connection.execute(
            "SELECT owner_id, incarnation FROM brokers WHERE owner_id = ?", (here,)
        ).rows
        alone = await outcome(lambda: members.set_draining(connection, mine, True))
        assert "no other node can take" in alone
        members.set_draining(connection, mine, False)
        released = await outcome(lambda: lease.release(engine, connection, held, clean=True))
        assert released == "empty"


async def test_a_command_waits_for_a_move_until_the_node_owns_the_bundle_or_does_not_take_it(
    engine: Engine, mock_clock: trio.testing.MockClock
) -> None:
    """B8: a pin to another node ends the wait, and so does a node that takes nothing for long."""
    async with broker_of(engine) as (world, broker, here):
        await broker.admin("cluster.bundles", count=2)
        other = join(engine, world, "other")
        outcomes: list[str] = []

        async def wait() -> None:
            pinned = await broker.admin("cluster.move", bundle=1, node="other:7650")
            try:
                row = await until_moved(broker, pinned, ProgressLine())
                outcomes.append(row["owner_id"])
            except Conflict as error:
                outcomes.append(str(error))

        async def outcome(seconds: int, change: Callable[[], Any]) -> str:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await world.clock.advance(seconds=1)
                assert not outcomes, "it did not wait"
                change()
                await world.clock.advance(seconds=seconds)
            return outcomes.pop()

        with closing(engine.connect()) as connection:
            elsewhere = await outcome(1, lambda: lease.pin(connection, 1, here))
            assert elsewhere == "bundle 1 was moved elsewhere meanwhile"
            drains = await outcome(1, lambda: members.set_draining(connection, other.key, True))
            assert "other:7650 has ended or drains" in drains
            members.set_draining(connection, other.key, False)
        assert "did not take bundle 1 within 60 s" in await outcome(60, lambda: None)
        taken = await outcome(1, lambda: lease.take(engine, other, world.clock, 1))
        assert taken == "other-00000000"


async def test_a_bundle_is_pinned_to_a_live_node(
    engine: Engine, connection: Connection, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the epoch stays, so the owner goes on until it hands the bundle over."""
    async with broker_of(engine) as (world, broker, here):
        join(engine, world, "other")
        pinned = await broker.admin("cluster.move", bundle=0, node="other:7650")
        assert (pinned["pinned_to"], pinned["owner_id"], pinned["epoch"]) == ("other:7650", here, 1)
        assert look_at_all(engine, connection)[1][0].pinned_to == "other-00000000"
        receipt = await (await broker.producer("t")).send(b"1")
        assert receipt.id.offset == 0
        await broker.admin("cluster.drain", node="other:7650")
        with pytest.raises(Conflict, match="is draining"):
            await broker.admin("cluster.move", bundle=0, node="other:7650")
        assert (await broker.admin("cluster.move", bundle=0, node=None))["pinned_to"] is None
        assert look_at_all(engine, connection)[1][0].pinned_to == ""


async def test_what_does_not_exist_or_is_ambiguous_is_refused(
    engine: Engine, mock_clock: trio.testing.MockClock
) -> None:
    async with broker_of(engine) as (world, broker, here):
        join(engine, world, "other")
        join(engine, world, "others")
        for verb, arguments in (
            ("cluster.drain", {}),
            ("cluster.undrain", {}),
            ("cluster.move", {"bundle": 0}),
        ):
            with pytest.raises(NotFound, match=rf"'nobody'. Live nodes: .*{here}"):
                await broker.admin(verb, node="nobody", **arguments)
            with pytest.raises(InvalidRequest, match=r"several nodes.*other-0.*others-0"):
                await broker.admin(verb, node="other", **arguments)
            with pytest.raises(NotFound):
                await broker.admin(verb, node=here[:3], **arguments)
        with pytest.raises(NotFound, match=r"no bundle 1\. The database has bundles 0 to 0"):
            await broker.admin("cluster.move", bundle=1, node=here)
        await broker.admin("cluster.bundles", count=4)
        with pytest.raises(InvalidRequest, match="cannot become smaller"):
            await broker.admin("cluster.bundles", count=3)
        with pytest.raises(InvalidRequest, match="at most 64"):
            await broker.admin("cluster.bundles", count=65)


def test_only_a_new_database_is_divided_by_the_first_node(
    engine: Engine, connection: Connection
) -> None:
    """B8: another node with another number changes nothing."""
    assert divide_new_database(engine, 4) == 4
    assert divide_new_database(engine, 8) == 4
    assert sorted(look_at_all(engine, connection)[1]) == [0, 1, 2, 3]


async def test_a_database_with_topics_keeps_its_bundle(
    engine: Engine, connection: Connection, mock_clock: trio.testing.MockClock
) -> None:
    async with broker_of(engine) as (_, broker, _):
        await broker.admin("topics.create", topic="t")
        assert divide_new_database(engine, 8) == 1
        assert sorted(look_at_all(engine, connection)[1]) == [0]
        assert set_bundle_count(engine, 2) == 1
