"""Clients that know only nodes without bundles, or nodes that end or lose the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
import trio.testing

import escapement
from escapement.access.token import Token
from escapement.errors import (
    AccessDenied,
    InvalidRequest,
    NoOwner,
    StorageUnavailable,
    Unauthenticated,
)
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from escapement.testing.clock import START_MS, VirtualClock
from support.bundle_topics import topic_of_each_bundle
from support.database.outages import Outage
from support.roles import new_token
from support.storage.bundle_brokers import full
from support.storage.cluster import connected
from support.storage.running_nodes import Running, made

# No lease of this duration expires in a test, unless the test says so.
LONG_MS: Final = 3_600_000


@pytest.fixture
def database(mysql_url: str, tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(mysql_url, tmp_path)
    yield engine
    engine.close()


class Nodes:
    """Nodes "a", "b" and so on, of which the first took all bundles. Each has its own outages."""

    def __init__(
        self,
        running: Running,
        database: Engine,
        data: Path,
        names: str,
        bundles: int,
        lease_ms: int,
    ) -> None:
        self.running = running
        self.outages = {name: Outage(database) for name in names}
        self.by_name = {
            name: made(
                self.outages[name].engine,
                data / name,
                name,
                running.clock,
                bundles,
                lease_ms=lease_ms,
            )
            for name in names
        }

    def owned(self, name: str) -> list[int]:
        """Return the bundles that a node serves."""
        return [broker.bundle_id for broker in self.by_name[name].brokers]

    async def move(self, client: escapement.Broker, bundle: int, to: str) -> None:
        """Move a bundle to a node, through a client, and wait until it is there."""
        node = f"{to}:7650"
        await self.running.result(partial(client.admin, "cluster.move", bundle=bundle, node=node))
        await self.running.until(lambda: bundle in self.owned(to))


@asynccontextmanager
async def nodes(
    database: Engine, data: Path, names: str, bundles: int = 1, lease_ms: int = LONG_MS
) -> AsyncIterator[Nodes]:
    """Run nodes until the end of the block."""
    async with trio.open_nursery() as nursery:
        running = Running(nursery, VirtualClock(START_MS))
        found = Nodes(running, database, data, names, bundles, lease_ms)
        for name, node in found.by_name.items():
            await running.start(f"{name}:7650", node)
        directories = [node.directory for node in found.by_name.values()]
        await running.until(lambda: all(len(one.nodes) == len(names) for one in directories))
        yield found
        nursery.cancel_scope.cancel()


@dataclass
class Traffic:
    """Messages to some topics, each with a consumer that acknowledges what it gets."""

    running: Running
    producers: list[escapement.Producer] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    got: list[list[bytes]] = field(default_factory=list)

    async def begin(
        self, client: escapement.Broker, topics: list[str], nursery: trio.Nursery
    ) -> None:
        for topic in topics:
            self.producers.append(await self.running.result(partial(client.producer, topic)))
            self.got.append([])
            consume = partial(self._consume, client, topic, self.got[-1])
            await self.running.result(partial(nursery.start, consume))

    async def _consume(
        self,
        client: escapement.Broker,
        topic: str,
        got: list[bytes],
        task_status: trio.TaskStatus[None],
    ) -> None:
        async with client.consumer(topic, "s", position="earliest") as inbox:
            task_status.started()
            async for message in inbox:
                await inbox.ack(message, durable=True)
                got.append(message.value)

    async def flow(self) -> None:
        """Send a message to each topic, and wait until all consumers have it, once."""
        value = b"%d" % len(self.sent)
        self.sent.append(value)
        for producer in self.producers:
            assert not (await self.running.result(partial(producer.send, value))).duplicate
        await self.running.until(lambda: all(got == self.sent for got in self.got))


@pytest.mark.parametrize("bundles", [1, 2])
async def test_client_that_knows_only_a_node_without_bundles_uses_all_topics_while_they_move(
    bundles: int, database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8: Moved in answer to Hello leads it to a broker. No message is lost or comes twice."""
    topics = topic_of_each_bundle(bundles)
    async with (
        nodes(database, tmp_path, "abc", bundles) as found,
        connected(found.running, "c") as client,
    ):
        await client.admin("cluster.drain", node="c:7650")
        traffic = Traffic(found.running)
        async with trio.open_nursery() as nursery:
            await traffic.begin(client, topics, nursery)
            await traffic.flow()
            for name in "bab":
                for bundle in range(bundles):
                    await found.move(client, bundle, name)
                    await traffic.flow()
            nursery.cancel_scope.cancel()
        assert found.owned("b") == list(range(bundles))
        assert found.owned("c") == []

        async def list_all() -> tuple[list[str], set[str]]:
            async with connected(found.running, "c") as late:
                listed = await late.admin("topics.list")
                status = await late.admin("cluster.status")
                return listed["topics"], {one["owner_id"] for one in status["bundles"]}

        assert await found.running.result(list_all) == (sorted(map(full, topics)), {"b" * 32})
        await found.running.stop("a:7650", "b:7650", "c:7650")


async def test_node_without_bundles_names_another_owner_to_a_client_that_comes_again(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the owner that it names first has died, and its lease has not expired."""
    (_, there) = topic_of_each_bundle(2)
    async with nodes(database, tmp_path, "abc", 2) as found:
        async with connected(found.running) as client:
            await client.admin("cluster.drain", node="c:7650")
            await found.move(client, 1, "b")
        assert [found.owned(name) for name in "abc"] == [[0], [1], []]
        await found.running.kill("a:7650")

        async def publish() -> str:
            async with connected(found.running, "c") as client:
                await (await client.producer(there)).send(b"x")
                return client.name

        assert await found.running.result(publish) == "b:7650"
        assert found.running.dialled.count("a:7650") > 1


async def test_node_tells_the_state_of_the_cluster_while_no_bundle_has_an_owner(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the owner has died, and the node that should take its bundles does not answer."""
    async with nodes(database, tmp_path, "abc", 2) as found:
        assert found.owned("a") == [0, 1]
        async with connected(found.running) as client:
            await client.admin("cluster.drain", node="b:7650")
        await found.running.kill("a:7650")
        await found.running.kill("c:7650")

        async def status() -> Any:
            async with connected(found.running, "b", observer=True) as client:
                with pytest.raises(InvalidRequest, match=r"answers only cluster\.status"):
                    await client.admin("topics.list")
                return await client.admin("cluster.status")

        told = await found.running.result(status)
        names = ["a:7650", "b:7650", "c:7650"]
        assert [one["name"] for one in told["nodes"] if not one["here"]] == [names[0], names[2]]
        assert [one["owner"] for one in told["bundles"]] == ["a:7650"] * 2
        with closing(database.connect()) as connection:  # as if its lease had expired
            connection.execute("DELETE FROM brokers WHERE owner_id = ?", ("a" * 32,))
        told = await found.running.result(status)
        assert [one["name"] for one in told["nodes"]] == names[1:]
        assert [(one["owner"], one["free"]) for one in told["bundles"]] == [(None, True)] * 2
        with pytest.RaisesGroup(NoOwner, flatten_subgroups=True):  # not an observer
            await found.running.result(lambda: connected(found.running, "b").__aenter__())


async def test_observer_needs_a_token_and_the_right_to_see_the_cluster(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8, O1: the node reads tokens and grants, also those that were changed just now."""
    async with nodes(database, tmp_path, "ab") as found:
        token = Token.new()
        access = found.by_name["a"].brokers[0].services.access
        await access.bootstrap("root", token.id, token.digest)

        async def ask() -> Any:
            async with connected(found.running, token=token.text) as root:
                app = await new_token(root, "app")
                for text, refusal in ((None, Unauthenticated), (app.text, AccessDenied)):
                    with pytest.raises(refusal):
                        await status(text)
                await root.admin("grants.add", role="app", pattern="*", actions=["peek"])
                async with connected(found.running, "b", token=app.text, observer=True) as client:
                    assert (await client.admin("cluster.status"))["nodes"][1]["here"]
                    await root.admin("tokens.revoke", id=app.id)
                    with pytest.raises(Unauthenticated):
                        await client.admin("cluster.status")
                with pytest.raises(Unauthenticated):
                    await status(app.text)
                return True

        async def status(text: str | None) -> None:
            async with connected(found.running, "b", token=text, observer=True) as client:
                await client.admin("cluster.status")

        assert await found.running.result(ask)


async def test_observer_whose_token_cannot_be_checked_learns_nothing_about_the_database(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8, O1: database errors name its address and user, and any client could read them."""
    async with nodes(database, tmp_path, "ab") as found:
        found.outages["b"].unreachable()
        with pytest.RaisesGroup(StorageUnavailable, flatten_subgroups=True) as caught:
            await found.running.result(
                lambda: connected(found.running, "b", observer=True).__aenter__()
            )
        (error,) = caught.value.exceptions
        assert "cannot check the token" in str(error)
        assert "says the test" not in str(error)


async def test_node_that_stops_names_the_next_owner_of_its_only_bundle(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8, P6: a client that knew only the address of this node goes on at the other one."""
    async with nodes(database, tmp_path, "ab") as found, connected(found.running) as client:
        traffic = Traffic(found.running)
        async with trio.open_nursery() as nursery:
            await traffic.begin(client, ["t"], nursery)
            await traffic.flow()
            await found.running.stop("a:7650")
            await traffic.flow()
            nursery.cancel_scope.cancel()
        assert found.owned("b") == [0]
        await found.running.stop("b:7650")


@pytest.mark.parametrize("is_taken", [True, False])
async def test_clients_of_a_node_that_lost_the_database_find_the_next_owner(
    is_taken: bool,
    database: Engine,
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """B8, Q8: they knew only this node, which cannot know who took its bundle.

    If nobody took it, they come back.
    """
    lease_ms = 30_000
    async with (
        nodes(database, tmp_path, "ab", lease_ms=lease_ms) as found,
        connected(found.running) as client,
    ):
        traffic = Traffic(found.running)
        async with trio.open_nursery() as nursery:
            await traffic.begin(client, ["t"], nursery)
            await traffic.flow()
            cut_off = "a" if is_taken else "ab"
            for name in cut_off:
                found.outages[name].unreachable()
            await found.running.until(lambda: "node.cut_off" in events(caplog))
            if is_taken:
                with closing(database.connect()) as connection:
                    connection.execute("UPDATE brokers SET expires_at_ms = 1 WHERE name = 'a:7650'")
            else:
                for name in cut_off:
                    found.outages[name].over()
            await traffic.flow()
            assert found.owned("b") == ([0] if is_taken else [])
            found.outages["a"].over()
            await found.running.until(lambda: found.owned("a") == ([] if is_taken else [0]))
            await traffic.flow()
            nursery.cancel_scope.cancel()
        assert events(caplog).count("node.cut_off") == 1
        await found.running.stop("a:7650", "b:7650")


async def test_node_without_bundles_that_lost_the_database_names_a_node_that_knows_more(
    database: Engine, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """B8: the owner that it saw last has died, and a node that it also knows took the bundle."""
    async with nodes(database, tmp_path, "abc", lease_ms=30_000) as found:
        found.outages["c"].unreachable()
        await found.running.kill("a:7650")
        with closing(database.connect()) as connection:
            connection.execute("UPDATE brokers SET expires_at_ms = 1 WHERE name = 'a:7650'")
        await found.running.until(lambda: found.owned("b") == [0])

        async def publish() -> str:
            async with connected(found.running, "c") as client:
                await (await client.producer("t")).send(b"x")
                return client.name

        assert await found.running.result(publish) == "b:7650"


async def test_node_that_knows_no_other_keeps_its_clients_in_an_outage(
    database: Engine,
    tmp_path: Path,
    mock_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Q8: their requests wait for the database."""
    async with (
        nodes(database, tmp_path, "a", lease_ms=30_000) as found,
        connected(found.running) as client,
    ):
        (node,) = found.by_name.values()
        producer = await found.running.result(partial(client.producer, "t"))
        found.outages["a"].unreachable()
        await found.running.until(lambda: not node.membership.held)
        receipts: list[escapement.Receipt] = []

        async def send() -> None:
            receipts.append(await producer.send(b"x"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await found.running.clock.advance(seconds=5)
            assert not receipts
            found.outages["a"].over()
            await found.running.until(lambda: bool(receipts))
        assert found.running.dialled == ["a:7650"]
        assert "node.cut_off" not in events(caplog)
        await found.running.stop("a:7650")


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events that were logged."""
    return [getattr(record, "event", "") for record in caplog.records]
