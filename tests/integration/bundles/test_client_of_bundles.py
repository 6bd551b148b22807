"""A client of several brokers: it finds the broker of each topic, and follows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import escapement
from escapement.broker.broker import Broker
from escapement.errors import Disconnected, EscapementError, LeaseLost, NoOwner, NotFound
from escapement.protocol import commands as wire
from escapement.storage.engine.base import Engine
from escapement.testing import arrived
from support.storage.bundle_brokers import full
from support.storage.cluster import Cluster, cluster, connected, named, result, settle


async def stored(client: escapement.Broker, topic: str) -> list[bytes]:
    """Return all messages in the log of a topic, sorted."""
    return sorted([one.value async for page in client.read(topic) for one in page])


def links(client: escapement.Broker) -> dict[int | None, bool]:
    """Return the bundles of a client's lines, and whether each is connected."""
    return {line.bundle: line.link is not None for line in client._lines}


def brokers_of(found: Cluster, address: str) -> list[Broker]:
    return list(found.nodes[address].brokers.values())


async def test_a_client_uses_topics_of_all_bundles_through_one_address(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: it makes the connection of a bundle when it needs it first, and looks up once."""
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        (here,), (there,) = named(found, 0), named(found, 1)
        assert links(client) == {0: True}
        for topic in (here, there):
            async with client.consumer(topic, "s", position="earliest") as inbox:
                producer = await client.producer(topic)
                receipt = await producer.send(topic.encode())
                assert receipt.id.topic == full(topic)
                message = await inbox.receive()
                assert message is not None
                assert message.value == topic.encode()
                assert await message.ack(durable=True) is None
            later = await producer.send(b"later", delay="1h")
            assert (await client.cancel(later)).done.all()
            assert (await client.find(topic, "none")) == [None]
            pages = [page async for page in client.read(topic)]
            assert [one.value for one in pages[0]] == [topic.encode(), b"later"]
        assert links(client) == {0: True, 1: True}
        (greeted,) = [dict(features) for features in found.nodes["b:7650"].greeted]
        assert greeted.pop("log") == client.limits["log"]
        assert greeted == {"moved": 1, "bundles": 1, "ack_deadlines": 1, "bundle": 1}
        assert client.connected


async def test_listings_merge_the_answers_of_all_brokers(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: administration sees one database. A verb about one thing reaches its broker."""
    async with cluster(sqlite, tmp_path) as found, connected(found, "b") as client:
        topics = [*named(found, 0, 3), *named(found, 1, 2)]
        created = await client.admin("topics.create_many", topics=topics, subscription="s")
        assert created == {"created": 5, "existed": 0}
        assert await client.admin("topics.list") == {
            "topics": sorted(map(full, topics)),
            "total": 5,
        }
        for number, topic in enumerate(topics):
            await client.schedules.create(f"again{number}", topic, every="1h")
        listed = [one.name for one in await client.schedules.list()]
        assert listed == [f"public/default/again{number}" for number in range(5)]
        for number, topic in enumerate(topics):
            assert (await client.schedules.pause(f"again{number}")).topic == full(topic)
        with pytest.raises(NotFound):
            await client.schedules.get("nothing")
        for topic in topics[2:4]:
            await client.bulk.cancel(topic, everything=True)
        assert {one.topic for one in await client.bulk.list()} == set(map(full, topics[2:4]))
        for topic in topics[2:4]:
            target = {"topic": topic, "subscription": "s", "url": f"https://{topic}.example/"}
            await client.admin("push.create", **target)
        for verb in ("push.list", "push.secrets"):
            found_topics = [row["topic"] for row in await client.admin(verb)]
            assert found_topics == sorted(map(full, topics[2:4]))
        stats = await client.admin("broker.stats")
        assert (stats["topics"], stats["name"]) == (5, "a:7650, b:7650")
        assert stats["log_disk_bytes"] > 0
        await client.admin("namespaces.update", namespace="public/default", policy={"ttl_ms": "1h"})
        await client.admin("grants.add", role="r", pattern="*", actions=["consume"])
        client.hint()


async def test_verbs_of_the_cluster_go_to_any_broker_with_a_connection(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: also if bundle 0 has no owner."""
    async with cluster(engine, tmp_path) as found, connected(found, "b") as client:
        assert links(client) == {1: True}
        await found.stop(0)
        shown = await client.admin("cluster.status")
        assert [one["name"] for one in shown["nodes"] if one["here"]] == ["b:7650"]
        assert [one["free"] for one in shown["bundles"]] == [True, False]
        assert (await client.admin("broker.findings"))["node"] == "b:7650"
        assert (await client.admin("access.own"))["role"] is None
        assert links(client) == {1: True}


async def test_listing_of_a_namespace_that_one_broker_knows(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: a broker without topics in a namespace has nothing to add."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1, prefix="a/b/x")
        await client.admin("topics.create", topic=topic)
        assert (await client.admin("topics.list", namespace="a/b"))["topics"] == [topic]
        with pytest.raises(NotFound, match="no/body"):
            await client.admin("topics.list", namespace="no/body")


@pytest.mark.parametrize("crashes", [False, True])
async def test_a_hand_over_is_a_pause_for_producers_and_consumers(
    crashes: bool, mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8, P6: nothing is lost, and nothing that was acknowledged comes again.

    After a crash, messages whose acknowledgements were not durable come again.
    """
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        topics = [*named(found, 0), *named(found, 1)]
        producers = [await client.producer(topic) for topic in topics]
        got: list[list[bytes]] = [[], []]
        sent: list[set[bytes]] = [set(), set()]

        async def consume(at: int, task_status: trio.TaskStatus[None]) -> None:
            async with client.consumer(topics[at], "s", position="earliest") as inbox:
                task_status.started()
                async for message in inbox:
                    await inbox.ack(message, durable=True)
                    got[at].append(message.value)

        async def publish(at: int, value: bytes) -> None:
            await producers[at].send(value)
            sent[at].add(value)

        async with trio.open_nursery() as nursery:
            for at in (0, 1):
                await nursery.start(consume, at)
            owners = {0: "a:7650", 1: "b:7650"}
            for turn in range(6):
                bundle = turn % 2
                for number in range(20):
                    for at in (0, 1):
                        nursery.start_soon(publish, at, b"%d-%d" % (turn, number))
                owners[bundle] = "b:7650" if owners[bundle] == "a:7650" else "a:7650"
                if crashes:
                    await found.crash(bundle)
                    await found.start(bundle, owners[bundle])
                else:
                    await found.move(bundle, owners[bundle])
            everything = {b"%d-%d" % (turn, number) for turn in range(6) for number in range(20)}
            await settle(found, lambda: sent == [everything] * 2)
            await settle(found, lambda: [set(one) for one in got] == [everything] * 2)
            nursery.cancel_scope.cancel()
        assert crashes or [len(one) for one in got] == [120, 120]
        for topic in topics:
            assert await result(found, partial(stored, client, topic)) == sorted(everything)


async def test_a_message_received_before_a_hand_over_is_acknowledged_after_it(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8, V2: it does not come again, and the other messages in flight do, as at a reconnect."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1)
        async with client.consumer(topic, "s", position="earliest") as inbox:
            await (await client.producer(topic)).send_many([b"one", b"two"])
            first, second = await arrived(inbox)
            await found.move(1, "a:7650")
            assert await result(found, lambda: inbox.ack(first, durable=True)) == 1
            again = await result(found, inbox.receive)
            assert (again.value, again.redelivered) == (second.value, True)
            assert await inbox.ack(again, durable=True) == 1
            await found.clock.advance(hours=1)
            assert await arrived(inbox) == []


async def test_closing_waits_for_the_brokers_of_all_bundles(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """N2: what was submitted and acknowledged before the end of the block is durable."""
    async with cluster(sqlite, tmp_path) as found:
        topics = [*named(found, 0), *named(found, 1)]
        async with connected(found) as client:
            for topic in topics:
                await (await client.producer(topic)).submit(topic.encode())
        async with connected(found, "b") as client:
            for topic in topics:
                pages = [page async for page in client.read(topic)]
                assert [one.value for one in pages[0]] == [topic.encode()]


async def test_requests_of_administration_wait_for_the_next_owner(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: also while no owner is known."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1)
        await client.admin("topics.create", topic=topic)
        await found.stop(1)
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await client.admin("topics.get", topic=topic))
            answers.append(await client.cancel([0], topic=topic))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await found.clock.advance(seconds=5)
            assert not answers
            await found.start(1, "a:7650")
            await settle(found, lambda: len(answers) == 2)
        assert answers[0]["topic"] == full(topic)


async def test_lookups_do_not_wait_for_the_bundle_of_the_first_connection(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: its broker has crashed. Any other one answers, also one of several lookups at once."""
    async with cluster(sqlite, tmp_path) as found, connected(found, "a", "b") as client:
        topics = named(found, 1, 3)
        await found.crash(0)
        await settle(found, lambda: links(client) == {0: False})
        producers: list[escapement.Producer] = []

        async def open_producer(topic: str) -> None:
            producers.append(await client.producer(topic))

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(open_producer, topic)
            await settle(found, lambda: len(producers) == 3)
        assert links(client) == {0: False, 1: True}
        # The connection of the first lookup has ended.
        counts = [found.nodes["b:7650"].front.count_of(one) for one in brokers_of(found, "b:7650")]
        assert counts == [1]


async def test_lookups_end_with_the_client_and_after_their_time(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: no broker answers."""
    async with cluster(sqlite, tmp_path) as found:
        async with connected(found, "a", "b") as client:
            for bundle in (0, 1):
                await found.crash(bundle)
            await settle(found, lambda: links(client) == {0: False})
            refusals: list[str] = []

            async def open_producer() -> None:
                with pytest.raises(Disconnected) as refusal:
                    await client.producer(*named(found, 1))
                refusals.append(str(refusal.value))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(open_producer)
                await found.clock.advance(seconds=29)
                assert not refusals
                await settle(found, lambda: bool(refusals))
            assert "does not own bundle" in refusals[0] or "answered in time" in refusals[0]
        with pytest.raises(Disconnected, match="closed by this side"):
            await client.producer(*named(found, 1))


async def test_stale_news_about_an_owner_are_ignored(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: a node that does not know the new owner yet cannot send a client back."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1)
        producer = await client.producer(topic)
        await found.move(1, "a:7650")
        await settle(found, lambda: links(client)[1])
        for line in client._lines:
            line._dispatch(wire.Moved(0, 1, "b:7650", 1))
        tried: list[str] = []
        dial = found.dial

        async def noted(address: str) -> Any:
            tried.append(address)
            return await dial(address)

        found.dial = noted  # type: ignore[method-assign]
        line = client._lines.of_bundle(1)
        assert line.link is not None
        line.link.end(Disconnected("cut by the test"))
        await settle(found, lambda: links(client)[1])
        assert tried == ["a:7650"]
        assert (await result(found, lambda: producer.send(b"x"))).id.offset == 0


async def test_several_addresses_are_tried_in_turn(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: a client connects if one of them answers. The error names all of them."""
    async with cluster(sqlite, tmp_path) as found:
        async with connected(found, "gone", "b") as client:
            assert client.name == "b:7650"
        with pytest.raises(Disconnected, match="on gone:7650; nothing listens on lost:7650"):
            async with connected(found, "gone", "lost"):
                pass


@pytest.mark.parametrize("bundles", [1, 2])
async def test_listings_contain_bundles_that_were_added_after_the_client_connected(
    bundles: int, mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: the client has not heard of them, and nothing is left out without a word."""
    async with cluster(sqlite, tmp_path, bundles=bundles) as found, connected(found) as old:
        names = [named(found, bundle)[0] for bundle in range(bundles)]
        for name in names:
            await result(found, partial(old.admin, "topics.create", topic=name))
        await found.add_bundles(4, "b:7650")
        async with connected(found) as new:
            names += named(found, 3)
            # This creates the topic too.
            await result(found, lambda: new.schedules.create("again", names[-1], every="1h"))
        schedule = await result(found, lambda: old.schedules.get("again"))
        assert schedule.topic == full(names[-1])
        old._lines._places.count = bundles
        listed = await result(found, lambda: old.admin("topics.list"))
        assert listed == {"topics": sorted(map(full, names)), "total": len(names)}


async def test_a_client_learns_that_bundles_were_added(
    mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: Moved tells it, and the producer opens at the other broker."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1)
        places = client._lines._places
        places.count = 1
        producer = await result(found, lambda: client.producer(topic))
        assert producer._line.bundle == 1
        places.count = 1
        answer = await result(found, lambda: client.admin("topics.get", topic=topic))
        assert answer["topic"] == full(topic)
        places.count = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(settle, found, lambda: places.count == 2)
            inbox_of = client.consumer(topic, "s", position="earliest")
            inbox = await result(found, inbox_of.__aenter__)
        await producer.send(b"x")
        assert [one.value for one in await arrived(inbox)] == [b"x"]
        await inbox_of.__aexit__(None, None, None)


@pytest.mark.parametrize("address", ["nowhere:1", "a:7650"])
async def test_owner_that_advertises_a_wrong_address(
    address: str, mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: the address has no listener, or another broker. Each call ends, with ``NoOwner``."""
    async with cluster(sqlite, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1)
        found.misplace(1, address)

        async def consume() -> None:
            async with client.consumer(topic, "s"):
                raise AssertionError("the consumer was opened")

        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: client.producer(topic),
            lambda: client.cancel(0, topic=topic),
            lambda: client.admin("topics.create", topic=topic),
            consume,
        ]
        errors: list[NoOwner] = []

        async def fail(call: Callable[[], Awaitable[Any]]) -> None:
            with pytest.raises(NoOwner, match=r"a:7650 does not own bundle 1") as it:
                await call()
            errors.append(it.value)

        begun_s = trio.current_time()
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(fail, call)
            for _ in range(400):
                await found.clock.advance(seconds=0.1)
                if len(errors) == len(calls):
                    break
            nursery.cancel_scope.cancel()
        assert len(errors) == len(calls)
        assert trio.current_time() - begun_s < 31
        assert all(error.retryable for error in errors)


@pytest.mark.parametrize("what", ["cancel", "reschedule", "run_now", "topics.update"])
async def test_a_request_at_a_broker_that_has_lost_its_lease_is_repeated(
    what: str, mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: the application sees a pause. Only requests that may act twice are repeated."""
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        (topic,) = named(found, 1)
        later = await (await client.producer(topic)).send(b"later", delay="1h")
        await found.overtake(1, "a:7650")
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "cancel": lambda: client.cancel(later),
            "reschedule": lambda: client.reschedule(later, delay="2h"),
            "run_now": lambda: client.run_now(later),
            "topics.update": lambda: client.admin(
                "topics.update", topic=topic, policy={"ttl_ms": "1h"}
            ),
        }
        changed = await result(found, calls[what])
        if what != "topics.update":
            assert changed.done.all()


@pytest.mark.parametrize("bundles", [1, 2])
async def test_a_request_that_a_stopping_broker_refused_is_repeated_at_the_next_owner(
    bundles: int, mock_clock: trio.testing.MockClock, sqlite: Engine, tmp_path: Path
) -> None:
    """B8: also if there is one bundle. The application sees a pause."""
    async with cluster(sqlite, tmp_path, bundles=bundles) as found, connected(found) as client:
        (topic,) = named(found, 0)
        later = await (await client.producer(topic)).send(b"later", delay="1h")
        (broker,) = brokers_of(found, "a:7650")
        broker.stopping = True
        answers: list[Any] = []

        async def cancel() -> None:
            answers.append(await client.cancel(later))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel)
            await found.clock.advance(seconds=2)
            assert not answers
            await found.move(0, "b:7650")
            await settle(found, lambda: bool(answers))
        assert answers[0].done.all()


async def test_a_request_that_must_not_act_twice_fails_where_the_lease_is_lost(
    mock_clock: trio.testing.MockClock, engine: Engine, tmp_path: Path
) -> None:
    """B8: the application may repeat it, after a look at what there is."""
    async with cluster(engine, tmp_path) as found, connected(found) as client:
        here, there = named(found, 1, 2)
        await client.producer(here)
        await found.overtake(1, "a:7650")

        errors: list[EscapementError] = []

        async def create() -> None:
            while True:
                try:
                    await client.admin("topics.create", topic=there)
                except (Disconnected, LeaseLost) as error:
                    errors.append(error)
                else:
                    return

        await result(found, create)
        assert errors
        assert all(error.retryable for error in errors)
