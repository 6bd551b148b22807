"""Concurrent calls on the same namespace, topic or subscription.

The tests enforce an order of the calls by holding back the group commit of the first one. At the
end each test crashes the broker and restarts it. The durable state must agree with the answers
that the callers received.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from escapement import testing
from escapement.broker.subscription.delivery.consumer import Outlet
from escapement.broker.topic.publication import Publication
from escapement.errors import Busy, EscapementError, NotFound, StorageReadOnly
from escapement.message import NO_TIMES, Blobs, MessageBatch
from escapement.names import NamespaceName, TopicName
from escapement.position import LATEST
from escapement.storage.catalog.producers import read_producers
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.faults.dying_brokers import lose_index
from support.faults.held_calls import COMMIT, Held
from support.unrecorded_verbs import run_verb

TOPIC = "shop/eu/orders"
NAME = TopicName.parse(TOPIC)
NAMESPACE = NAME.in_namespace
ANOTHER = NamespaceName.parse("another/one")

Call = tuple[str, dict[str, Any]]
CREATE_NAMESPACE: Call = ("namespaces.create", {"namespace": NAMESPACE.full})
DELETE_NAMESPACE: Call = ("namespaces.delete", {"namespace": NAMESPACE.full})
CREATE_TOPIC: Call = ("topics.create", {"topic": TOPIC})
DELETE_TOPIC: Call = ("topics.delete", {"topic": TOPIC, "force": True})
FORCE_DELETE_NAMESPACE: Call = ("namespaces.delete", {"namespace": NAMESPACE.full, "force": True})
CREATE: Call = ("subscriptions.create", {"topic": TOPIC, "subscription": "s"})
SEEK: Call = (
    "subscriptions.seek", {"topic": TOPIC, "subscription": "s", "position": "earliest"}
)  # fmt: skip
DELETE: Call = ("subscriptions.delete", {"topic": TOPIC, "subscription": "s", "force": True})


async def start_again(world: World) -> None:
    await world.crash()
    await world.restart()


async def in_this_order(world: World, held: Held, *calls: Call) -> list[str]:
    """Make all calls at once, so that the others arrive while the first is being committed."""
    outcomes = [""] * len(calls)

    async def ask(number: int) -> None:
        verb, arguments = calls[number]
        try:
            await run_verb(world, verb, **arguments)
        except EscapementError as error:
            outcomes[number] = error.code
        else:
            outcomes[number] = "done"

    async with trio.open_nursery() as nursery:
        with held.hold(COMMIT):
            for number in range(len(calls)):
                nursery.start_soon(ask, number)
                await held.reached()
                await wait_all_tasks_blocked()
    return outcomes


async def names(world: World) -> tuple[list[str], list[str], list[str]]:
    """Return the namespaces, topics and subscriptions that a user sees."""
    async with world.connect() as broker:
        namespaces = [n["namespace"] for n in await broker.admin("namespaces.list")]
        topics = (await broker.admin("topics.list"))["topics"]
        subscriptions = [
            one["subscription"]
            for topic in topics
            for one in await broker.admin("subscriptions.list", topic=topic)
        ]
    return [n for n in namespaces if n in (NAMESPACE.full, ANOTHER.full)], topics, subscriptions


class Race(NamedTuple):
    """Two concurrent calls, their expected answers, and the expected state.

    ``before`` prepares the state. ``left`` is the number of namespaces, topics and subscriptions
    afterwards.
    """

    before: Call | None
    first: Call
    second: Call
    answers: tuple[str, str]
    left: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.first[0]} before {self.second[0]}"


DONE = ("done", "done")
MISSING = ("done", "not_found")
EXISTS = ("done", "already_exists")
CONFLICT = ("done", "conflict")
RACES = [
    Race(CREATE, DELETE_TOPIC, CREATE, MISSING, (1, 0, 0)),
    Race(CREATE, DELETE_TOPIC, DELETE, MISSING, (1, 0, 0)),
    Race(CREATE, DELETE_TOPIC, CREATE_TOPIC, DONE, (1, 1, 0)),
    Race(CREATE, DELETE_TOPIC, DELETE_TOPIC, MISSING, (1, 0, 0)),
    Race(CREATE, DELETE_TOPIC, DELETE_NAMESPACE, CONFLICT, (1, 0, 0)),
    Race(CREATE, DELETE, DELETE_TOPIC, DONE, (1, 0, 0)),
    Race(CREATE, DELETE, CREATE, DONE, (1, 1, 1)),
    Race(CREATE_TOPIC, CREATE, DELETE_TOPIC, DONE, (1, 0, 0)),
    Race(CREATE_TOPIC, CREATE, DELETE, MISSING, (1, 1, 1)),
    Race(CREATE_TOPIC, CREATE, CREATE, EXISTS, (1, 1, 1)),
    Race(CREATE_NAMESPACE, DELETE_NAMESPACE, CREATE_TOPIC, MISSING, (0, 0, 0)),
    Race(CREATE_NAMESPACE, DELETE_NAMESPACE, CREATE_NAMESPACE, DONE, (1, 0, 0)),
    Race(CREATE_NAMESPACE, CREATE_TOPIC, DELETE_NAMESPACE, CONFLICT, (1, 1, 0)),
    Race(None, CREATE_NAMESPACE, CREATE_NAMESPACE, EXISTS, (1, 0, 0)),
]


@pytest.mark.parametrize("race", RACES, ids=str)
async def test_second_of_two_concurrent_calls_sees_the_result_of_the_first(
    mock_clock: MockClock, race: Race
) -> None:
    """Q7: deleting a topic deletes everything in it, whatever other calls are running."""
    held = Held()
    async with testing.start(run=held) as world:
        if race.before is not None:
            async with world.connect() as broker:
                verb, arguments = race.before
                await broker.admin(verb, **arguments)
        answers = await in_this_order(world, held, race.first, race.second)
        assert tuple(answers) == race.answers
        seen = await names(world)
        assert tuple(map(len, seen)) == race.left
        await start_again(world)
        assert await names(world) == seen


@pytest.mark.parametrize(
    ("before", "calls", "answers", "left"),
    [
        (CREATE, (DELETE_TOPIC, CREATE_TOPIC, DELETE_TOPIC), "done done not_found", (1, 1, 0)),
        (CREATE, (DELETE_TOPIC, DELETE_TOPIC, CREATE_TOPIC), "done not_found done", (1, 1, 0)),
        (CREATE, (DELETE, CREATE, DELETE), "done done not_found", (1, 1, 1)),
        (CREATE, (DELETE, DELETE, CREATE), "done not_found done", (1, 1, 1)),
        (CREATE, (SEEK, DELETE, DELETE), "done done not_found", (1, 1, 0)),
        (CREATE, (DELETE, SEEK, CREATE), "done not_found done", (1, 1, 1)),
        (
            CREATE,
            (FORCE_DELETE_NAMESPACE, FORCE_DELETE_NAMESPACE, DELETE_NAMESPACE),
            "done done conflict",
            (0, 0, 0),
        ),
        (
            CREATE,
            (FORCE_DELETE_NAMESPACE, DELETE_TOPIC, CREATE_TOPIC),
            "done done conflict",
            (0, 0, 0),
        ),
        (
            CREATE_NAMESPACE,
            (DELETE_NAMESPACE, CREATE_TOPIC, FORCE_DELETE_NAMESPACE),
            "done not_found not_found",
            (0,) * 3,
        ),
    ],
    ids=str,
)
async def test_concurrent_call_applies_to_the_object_that_existed_when_it_arrived(
    mock_clock: MockClock,
    before: Call,
    calls: tuple[Call, ...],
    answers: str,
    left: tuple[int, int, int],
) -> None:
    """Q7: deleting an object does not delete a new one that got its name meanwhile."""
    held = Held()
    async with testing.start(run=held) as world:
        async with world.connect() as broker:
            await broker.admin(before[0], **before[1])
            if before is CREATE:
                await (await broker.producer(TOPIC)).send(b"old")
        assert await in_this_order(world, held, *calls) == answers.split()
        seen = await names(world)
        assert tuple(map(len, seen)) == left
        await start_again(world)
        assert await names(world) == seen
        if seen[1] and DELETE_TOPIC in calls:
            await check_topic_is_new(world)


async def test_cancelled_deletion_does_not_reopen_a_topic_that_another_call_deletes(
    mock_clock: MockClock,
) -> None:
    """Q7: two calls delete a topic. The first is cancelled while it waits, the second goes on."""
    held, outcomes, scope = Held(), list[str](), trio.CancelScope()

    async def gives_up() -> None:
        with scope:
            await world.server.delete_topic(NAME)

    async with testing.start(run=held) as world:
        server = world.server
        handle = await server.publishing.open(TOPIC, "p", -1, lambda error: None)
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(server.registry.update_topic, NAME, {"ttl_ms": "1d"})
                await held.reached()
                nursery.start_soon(gives_up)
                nursery.start_soon(server.delete_topic, NAME)
                await wait_all_tasks_blocked()
                scope.cancel()
                await wait_all_tasks_blocked()
            with held.hold(COMMIT):
                await held.reached()
                with pytest.raises(Busy):
                    server.publishing.publish(handle, publication(outcomes, 0))
        with pytest.raises(NotFound):
            server.publishing.publish(handle, publication(outcomes, 0))
        assert outcomes == []
        await start_again(world)
        await check_topic_is_new(world)


async def check_topic_is_new(world: World) -> None:
    """Check that the topic can be created again, without messages of its predecessor."""
    async with world.connect() as broker:
        receipt = await (await broker.producer(TOPIC)).send(b"new")
        assert receipt.id.offset == 0
        async with broker.consumer(TOPIC, "s", position="earliest") as inbox:
            assert [m.value for m in await arrived(inbox)] == [b"new"]


class Nowhere(Outlet):
    """The outlet of a consumer that never receives anything."""


async def subscribe(world: World) -> None:
    await world.server.consuming.subscribe(
        TOPIC, "s", kind="shared", position=LATEST, ack_wait_ms=0, consumer_name="", wire_id=1,
        outlet=Nowhere(),
    )  # fmt: skip


async def open_producer(world: World) -> None:
    await world.server.publishing.open(TOPIC, "importer", -1, lambda error: None)


async def create_topic(world: World) -> None:
    await world.server.registry.ensure_topic(NAME)


async def create_namespace(world: World) -> None:
    await world.server.registry.namespaces.ensure(ANOTHER)


async def cancelled(held: Held, call: Callable[..., Awaitable[Any]], *arguments: object) -> None:
    """Make a call and cancel the caller during its commit. The commit then succeeds."""
    scope = trio.CancelScope()

    async def caller() -> None:
        with scope:
            await call(*arguments)

    async with trio.open_nursery() as nursery:
        with held.hold(COMMIT):
            nursery.start_soon(caller)
            await held.reached()
            scope.cancel()
            await wait_all_tasks_blocked()


@pytest.mark.parametrize(
    "create", [create_namespace, create_topic, subscribe, open_producer], ids=lambda f: f.__name__
)
async def test_object_created_by_a_cancelled_caller_exists_for_the_next_caller(
    mock_clock: MockClock, create: Callable[[World], Awaitable[None]]
) -> None:
    """Invariant 7: a broker's memory agrees with the state that a restart would read."""
    held = Held()
    async with testing.start(run=held) as world:
        await world.server.registry.namespaces.create(NAMESPACE)
        if create in (subscribe, open_producer):
            await create_topic(world)
        await cancelled(held, create, world)
        seen = await names(world)
        await create(world)
        assert await names(world) == seen
        await start_again(world)
        assert await names(world) == seen
        await check_topic_is_new(world)


async def test_topic_deleted_by_a_cancelled_caller_is_gone(
    mock_clock: MockClock,
) -> None:
    """Q7: the name is free, and a new topic of that name begins at offset 0."""
    held = Held()
    async with testing.start(run=held) as world:
        async with world.connect() as broker:
            await (await broker.producer(TOPIC)).send_many([b"old"] * 3)
        await cancelled(held, world.server.delete_topic, NAME)
        assert (await names(world))[1:] == ([], [])
        await check_topic_is_new(world)
        await start_again(world)
        assert (await names(world))[1:] == ([TOPIC], ["s"])


@pytest.mark.parametrize("index", ["kept", "lost"])
async def test_start_reads_no_log_rows_that_the_housekeeper_deleted(
    mock_clock: MockClock, index: str
) -> None:
    """P5, Q7: the journal still names those rows. Messages of other topics are all delivered."""
    async with testing.start() as world:
        async with world.connect() as broker:
            for topic in ("gone", "stays"):
                await (await broker.producer(topic)).send_many([topic.encode()] * 3)
            await broker.admin("topics.delete", topic="gone")
        await world.clock.advance(minutes=1)  # several rounds of the housekeeper
        await world.crash()
        if index == "lost":
            lose_index(world)
        await world.restart()
        async with (
            world.connect() as broker,
            broker.consumer("stays", "s", position="earliest") as inbox,
            broker.consumer("gone", "s", position="earliest") as other,
        ):
            await world.clock.settle()
            assert [m.value for m in await arrived(inbox)] == [b"stays"] * 3
            assert await arrived(other) == []


def publication(outcomes: list[str], sequence: int) -> Publication:
    """Return a publication of one message that appends its outcome to ``outcomes``."""
    batch = MessageBatch(Blobs.of([b"x"]))
    return Publication(
        sequence,
        sequence - 1,
        batch,
        NO_TIMES,
        batch.encode(),
        done=lambda stored: outcomes.append("stored"),
        failed=lambda error: outcomes.append(error.code),
    )


async def test_messages_published_just_before_a_deletion_are_confirmed_and_leave_nothing(
    mock_clock: MockClock,
) -> None:
    """Invariant 1: one batch precedes the deletion, another shares its transaction."""
    held = Held()
    async with testing.start(run=held) as world:
        server = world.server
        handle = await server.publishing.open(TOPIC, "p", -1, lambda error: None)
        outcomes: list[str] = []
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                server.publishing.publish(handle, publication(outcomes, 0))
                await held.reached()
                server.publishing.publish(handle, publication(outcomes, 1))
                nursery.start_soon(server.delete_topic, NAME)
                await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert outcomes == ["stored", "stored"]
        await start_again(world)
        await check_topic_is_new(world)


async def test_topic_that_is_being_deleted_accepts_no_messages(
    mock_clock: MockClock,
) -> None:
    """Q7: a producer that reconnects meanwhile under its old epoch is refused, too."""
    held = Held()
    async with testing.start(run=held) as world:
        server = world.server
        handle = await server.publishing.open(TOPIC, "p", -1, lambda error: None)
        outcomes: list[str] = []
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(server.delete_topic, NAME)
                await held.reached()
                again = await server.publishing.open(
                    TOPIC, "p", handle.producer.epoch, lambda error: None
                )
                with pytest.raises(Busy):
                    server.publishing.publish(again, publication(outcomes, 0))
        await wait_all_tasks_blocked()
        with pytest.raises(NotFound):
            server.publishing.publish(again, publication(outcomes, 0))
        assert outcomes == []
        await start_again(world)
        await check_topic_is_new(world)


async def refused(call: Callable[..., Awaitable[Any]], *arguments: object) -> None:
    """Make a call and expect ``NotFound``."""
    with pytest.raises(NotFound):
        await call(*arguments)


async def test_a_producer_opened_while_its_topic_is_deleted_is_refused(
    mock_clock: MockClock,
) -> None:
    """Q7: the row of the producer is deleted with the topic."""
    held = Held()
    engine = SqliteEngine.in_memory()
    async with testing.start(run=held, engine=engine) as world:
        server = world.server
        await create_topic(world)
        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(server.delete_topic, NAME)
                await held.reached()
                nursery.start_soon(refused, server.publishing.open, TOPIC, "late", -1, print)
                await wait_all_tasks_blocked()
        await world.clock.advance(minutes=1)  # several rounds of the housekeeper
        connection = engine.connect()
        assert list(read_producers(connection)) == []
        connection.close()
        await start_again(world)
        await check_topic_is_new(world)


async def test_topic_keeps_working_after_its_deletion_failed(mock_clock: MockClock) -> None:
    """Q7, Q8: a deletion that fails because the database is read-only changes nothing."""
    outage = Outage()
    async with testing.start(engine=outage.engine) as world, world.connect() as broker:
        await (await broker.producer(TOPIC)).send(b"before")
        outage.read_only()
        with pytest.raises(StorageReadOnly):
            await broker.admin("topics.delete", topic=TOPIC)
        outage.over()
        await world.clock.advance(seconds=5)
        receipt = await (await broker.producer(TOPIC)).send(b"after")
        assert receipt.id.offset == 1
        async with broker.consumer(TOPIC, "s", position="earliest") as inbox:
            assert [m.value for m in await arrived(inbox)] == [b"before", b"after"]
