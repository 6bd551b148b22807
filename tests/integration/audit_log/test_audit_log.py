"""The audit log of a broker: who did what, when, why, and with which outcome."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.access.token import Token
from escapement.broker.access.audit import MAX_REFUSALS
from escapement.broker.broker import BrokerConfig
from escapement.broker.front.bootstrap import Bootstrap
from escapement.broker.side_port.access import REASON_HEADER
from escapement.broker.side_port.openapi import path_of
from escapement.errors import AccessDenied, EscapementError, InvalidRequest, StorageUnavailable
from escapement.names import TopicName
from escapement.storage.bootstrap_request import BootstrapRequest
from escapement.storage.catalog.catalog import find_topic
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World
from support.database.outages import Outage
from support.faults.dying_brokers import DiesAt, finish
from support.roles import begin, connected, new_token
from support.side_ports import side_port
from support.storage.commit_pipelines import FaultyEngine, no_fault

DAY_MS = 86_400_000


def client(world: World, name: str = "cli", reason: str = "", **options: Any) -> Any:
    """Connect a client with a name and a reason."""
    settings = escapement.Settings(heartbeat_s=None, close_timeout_s=0, reason=reason)
    return world.connect(name=name, settings=settings, **options)


async def actions(broker: escapement.Broker, **wanted: Any) -> list[dict[str, Any]]:
    """Return the actions that match, the newest first."""
    found: list[dict[str, Any]] = (await broker.admin("audit.list", **wanted))["actions"]
    return found


async def test_row_says_who_did_what_when_and_why(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B17: on both databases, also after a restart."""
    async with testing.start(engine=engine) as world:
        token = await begin(world)
        async with client(world, reason="ticket 4711 — ü", token=token.text) as root:
            await root.admin("topics.create", topic="orders")
            await world.clock.advance(seconds=1)
            with pytest.raises(escapement.Conflict):
                await root.admin("namespaces.delete", namespace="public/default")
            await root.admin("topics.get", topic="orders")
        await world.stop()
        await world.restart()
        async with client(world, token=token.text) as root:
            now_ms = world.clock.now_ms()
            newest, oldest = await actions(root)
    assert oldest == {
        "at_ms": now_ms - 1_000, "role": "root", "peer": "", "client": "cli",
        "verb": "topics.create", "object": "public/default/orders",
        "arguments": '{"topic": "orders"}', "reason": "ticket 4711 — ü", "outcome": "done",
        "bundle": 0, "broker": "testing",
    }  # fmt: skip
    assert (newest["verb"], newest["outcome"]) == ("namespaces.delete", "conflict")


async def test_refusals_for_lack_of_a_right_are_recorded_up_to_a_bound(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B17: a role cannot fill the database with refused requests."""
    async with testing.start() as world, connected(world, await begin(world)) as root:
        async with connected(world, await new_token(root, "guest")) as guest:
            for _ in range(MAX_REFUSALS + 5):
                with pytest.raises(AccessDenied):
                    await guest.admin("topics.delete", topic="t")
            with pytest.raises(AccessDenied):
                await guest.admin("audit.list")
            found = await actions(root, role="guest", count=1000)
            assert len(found) == MAX_REFUSALS
            assert {(one["verb"], one["outcome"]) for one in found} == {
                ("topics.delete", "access_denied")
            }
            await world.clock.advance(minutes=1)
            with pytest.raises(AccessDenied):
                await guest.admin("topics.delete", topic="t")
            assert len(await actions(root, role="guest", count=1000)) == MAX_REFUSALS + 1


async def test_list_is_filtered_and_paged(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B17: pages have no gap and nothing twice, also of rows of the same millisecond."""
    async with testing.start(engine=engine) as world, world.connect(name="cli") as broker:
        start_ms = world.clock.now_ms()
        for number in range(7):
            await broker.admin("topics.create", topic=f"a/b/t{number}")
        await world.clock.advance(seconds=5)
        await broker.admin("namespaces.create", namespace="a/c")
        await broker.admin("topics.delete", topic="a/b/t3")
        verbs = [one["verb"] for one in await actions(broker)]
        assert verbs == ["topics.delete", "namespaces.create", *["topics.create"] * 7]
        pages, before = [], None
        while True:
            page = await broker.admin("audit.list", count=2, before=before, verbs="topics.")
            pages += [(one["verb"], one["object"]) for one in page["actions"]]
            if (before := page["next"]) is None:
                break
        assert pages == [("topics.delete", "a/b/t3")] + [
            ("topics.create", f"a/b/t{number}") for number in reversed(range(7))
        ]

        async def objects(**wanted: Any) -> list[str]:
            return [one["object"] for one in await actions(broker, **wanted)]

        assert await objects(object="a/b/t3") == ["a/b/t3"] * 2
        assert len(await objects(object="a/b/*")) == 8
        assert await objects(object="a/b") == []
        assert await objects(from_ms=start_ms + 1) == ["a/b/t3", "a/c"]
        assert len(await objects(until_ms=start_ms + 1)) == 7
        assert await objects(verbs="namespaces.", role="none") == []
        for wrong in ({"before": [1]}, {"count": 1001}):
            with pytest.raises(InvalidRequest):
                await broker.admin("audit.list", **wrong)


async def create(broker: escapement.Broker, topic: str) -> None:
    """Create a topic."""
    await broker.admin("topics.create", topic=topic)


async def publish(broker: escapement.Broker, topic: str) -> None:
    """Publish a message, which creates the topic."""
    producer = await broker.producer(topic, send_timeout=(1, "s"))
    await producer.send(b"x")


@pytest.mark.parametrize("change", [create, publish])
async def test_change_is_never_without_a_row_although_the_broker_dies_at_any_step(
    mock_clock: trio.testing.MockClock,
    engine: Engine,
    change: Callable[[escapement.Broker, str], Awaitable[None]],
) -> None:
    """B17: after a crash the row may lack the outcome, and no change lacks its row."""
    faulty = FaultyEngine(engine)
    unknown = 0
    async with testing.start(engine=faulty) as world:
        for number in count(1):
            topic = f"a/b/t{number}"

            async def work(topic: str = topic) -> None:
                with suppress(EscapementError):
                    async with client(world) as broker:
                        await change(broker, topic)

            faulty.before = dies = DiesAt(number)
            with trio.move_on_after(3):
                await finish(world, work)
            await world.crash()
            faulty.before = no_fault
            await world.restart()
            exists = True
            connection = engine.connect()
            try:
                find_topic(connection, TopicName.parse(topic))
            except escapement.NotFound:
                exists = False
            finally:
                connection.close()
            async with client(world) as broker:
                rows = await actions(broker, object=topic)
            if exists:
                assert rows, number
                unknown += rows[0]["outcome"] is None
            if not dies.dead:
                break
        assert exists
        assert [row["outcome"] for row in rows] == ["done"]
        assert number > 5
        assert unknown


async def test_action_is_refused_if_it_cannot_be_recorded(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B17: nothing changes while the audit log cannot be written."""
    outage = Outage()
    async with testing.start(engine=outage.engine) as world, client(world) as broker:
        await broker.admin("topics.create", topic="t")
        outage.read_only()
        with pytest.raises(StorageUnavailable):
            await broker.admin("topics.delete", topic="t")
        outage.over()
        await world.clock.advance(seconds=5)
        assert (await broker.admin("topics.get", topic="t"))["topic"]
        assert [one["verb"] for one in await actions(broker)] == ["topics.create"]


async def test_people_and_applications_cancel_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """B17: what a person cancels is recorded. Applications change their messages without a row."""
    async with testing.start() as world, client(world, "shop") as shop, client(world) as person:
        async with await shop.producer("t") as producer:
            ids = [(await producer.send(b"x", delay="1h")).id for _ in range(3)]
        await shop.cancel(ids[:1])
        await person.cancel(ids[1:2])
        await person.run_now(ids[2:])
        found = await actions(person)
        assert [one["verb"] for one in found] == ["messages.reschedule", "messages.cancel"]
        assert json.loads(found[1]["arguments"]) == {"messages": 1, "offsets": [1]}


async def test_people_who_publish_leave_a_row_and_applications_only_with_a_reason(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B17: one for each producer, also if it sends many messages, or reconnects."""
    async with testing.start(engine=engine) as world:
        root = (await begin(world)).text
        async with (
            client(world, reason="ticket 1", token=root) as person,
            client(world, "shop", reason="nightly", token=root) as shop,
        ):
            async with await shop.producer("t") as producer:
                await producer.send(b"x")
            async with await person.producer("t") as producer:
                await producer.send_many([b"x"] * 10)
                await world.crash()
                await world.restart()
                await finish(world, partial(producer.send, b"y"))
                named = producer.name
            async with await shop.because("ticket 2").producer("t", name="p") as producer:
                await producer.send(b"x")
            guest = (await new_token(person, "guest")).text
            async with client(world, token=guest) as other:
                with pytest.raises(AccessDenied):
                    await other.producer("t")
            found = [*reversed(await actions(person, verbs="messages.produce"))]
            assert (await person.admin("topics.stats", topic="t"))["next_offset"] == 13
    assert {one["object"] for one in found} == {"public/default/t"}
    assert [(one["role"], one["client"], one["reason"], one["outcome"]) for one in found] == [
        ("root", "cli", "ticket 1", "done"),
        ("root", "shop", "ticket 2", "done"),
        ("guest", "cli", None, "access_denied"),
    ]
    assert [json.loads(one["arguments"])["producer"] for one in found[:2]] == [named, "p"]


async def test_each_request_may_have_a_reason_of_its_own(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B17: it wins over that of the client. With it, changes of an application are recorded too."""
    async with (
        testing.start(engine=engine) as world,
        client(world, "shop", reason="nightly") as shop,
    ):
        person = shop.because("ticket 4711")
        async with await shop.producer("t") as producer:
            ids = [(await producer.send(b"x", delay="1h")).id for _ in range(4)]
        await person.cancel(ids[:1])
        await person.reschedule(ids[1:2], delay="2h")
        await person.run_now(ids[2:3])
        await shop.cancel(ids[3:])
        await person.pause("t")
        await shop.resume("t")
        changes = [
            await person.bulk.cancel("t", everything=True),
            await person.bulk.cancel("t", everything=True, reason="wrong price"),
        ]
        assert [one.reason for one in changes] == ["ticket 4711", "wrong price"]
        found = [(one["verb"], one["reason"]) for one in reversed(await actions(shop))]
    assert found == [
        ("messages.cancel", "ticket 4711"),
        ("messages.reschedule", "ticket 4711"),
        ("messages.reschedule", "ticket 4711"),
        ("dispatch.pause", "ticket 4711"),
        ("dispatch.resume", "nightly"),
        ("bulk.start", "ticket 4711"),
        ("bulk.start", "ticket 4711"),
    ]


async def test_reason_over_http_is_in_a_header(mock_clock: trio.testing.MockClock) -> None:
    """B17: with the address of the program."""
    async with testing.start() as world, side_port(world) as http, client(world) as broker:
        answer = await http.post(
            path_of("topics.create"),
            json={"topic": "t"},
            headers={REASON_HEADER: "ticket 4711 ü".encode()},
        )
        assert answer.status_code == 200
        (found,) = await actions(broker)
        assert (found["client"], found["peer"]) == ("http", "127.0.0.1:1")
        assert (found["reason"], found["outcome"]) == ("ticket 4711 ü", "done")


async def test_first_token_is_recorded(mock_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    """B17: `escapement admin bootstrap` leaves a request in the data directory."""
    token = Token.new()
    async with testing.start() as world:
        BootstrapRequest("root", token.id, token.digest).write(tmp_path)
        await Bootstrap(SqliteEngine.in_memory(), lambda: world.server, tmp_path, True).begin()
        async with client(world, token=token.text) as root:
            (found,) = await actions(root, verbs="tokens.")
    assert (found["verb"], found["client"]) == ("tokens.bootstrap", "bootstrap")
    assert (found["object"], found["outcome"]) == ("root", "done")
    assert token.secret not in json.dumps(found)


async def test_old_rows_are_deleted(mock_clock: trio.testing.MockClock, engine: Engine) -> None:
    """B17: rows are kept for as long as the setting says."""
    config = BrokerConfig(audit_retention_ms=2 * DAY_MS)
    async with testing.start(engine=engine, config=config) as world, client(world) as broker:
        await broker.admin("topics.create", topic="old")
        await world.clock.advance(days=1)
        await broker.admin("topics.create", topic="new")
        await finish(world, world.server.services.housekeeper.round)
        assert len(await actions(broker)) == 2
        await world.clock.advance(days=1, ms=1)
        await finish(world, world.server.services.housekeeper.round)
        assert [one["object"] for one in await actions(broker)] == ["public/default/new"]
