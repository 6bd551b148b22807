"""Groups of messages: a follow-up fires once, when a subscription is done with a group (Q10)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count

import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import FollowUp, GroupClosed, Settings, testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import (
    Conflict,
    EscapementError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    StorageUnavailable,
)
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.inbox.entry import InboxEntry
from escapement.testing import World, arrived
from support.database.outages import Outage
from support.faults.dying_brokers import DiesAt, finish
from support.faults.held_calls import COMMIT, Held
from support.messages.received_messages import in_log
from support.storage.commit_pipelines import FaultyEngine, Once, no_fault
from support.storage.inbox_entries import post

CONFIG = BrokerConfig(ack_wait_ms=10**11, seed=0)
HURRIED = Settings(heartbeat_s=None, close_timeout_s=0)
DONE = FollowUp(b"done", "after")


@asynccontextmanager
async def started(**options: object) -> AsyncIterator[tuple[World, escapement.Broker]]:
    async with (
        testing.start(**{"config": CONFIG, **options}) as world,  # type: ignore[arg-type]
        world.connect(settings=HURRIED) as broker,
    ):
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        yield world, broker


async def followed(world: World, topic: str = "after") -> list[bytes]:
    """Return the values of all messages published to the topic of the follow-ups."""
    await world.clock.settle()
    async with world.connect() as broker:
        try:
            return await in_log(broker, topic)
        except NotFound:
            return []


async def ack(broker: escapement.Broker, subscription: str = "s", most: int = 10**6) -> int:
    """Acknowledge up to ``most`` arrived messages durably. Return their number."""
    async with broker.consumer("t", subscription, permits=100_000) as inbox:
        messages = (await arrived(inbox))[:most]
        await inbox.ack([message.id for message in messages], durable=True)
    return len(messages)


# -- without failures ----------------------------------------------------------------------


async def test_follow_up_fires_once_when_all_messages_of_a_group_are_acknowledged(
    mock_clock: MockClock, engine: Engine
) -> None:
    """Q10: at the last acknowledgement and not before, with every property a message can have."""
    async with started(engine=engine) as (world, broker):
        producer = await broker.producer("t")
        for number in range(3):
            await producer.send(b"%d" % number, group="import-7")
        await producer.send_many([b"x", b"y", b"z"], groups=["import-7", None, "other"])
        await producer.message(b"built").group("import-7").delay_at(1, "hours").send()
        await producer.send(b"none")
        then = FollowUp(
            {"import": 7},
            "a/b/after",
            key="k",
            properties={"n": 7},
            priority=3,
            delay=timedelta(minutes=5),
            serializer=escapement.JSON,
        )
        closed = await producer.close_group("import-7", "s", then)
        assert (closed.name, closed.state, closed.messages) == ("import-7", "closed", 5)
        (completion,) = closed.completions
        assert (completion.subscription, completion.topic) == ("s", "a/b/after")
        assert (completion.state, completion.remaining, completion.fired) == ("waiting", 5, None)
        await ack(broker)
        assert await followed(world, "a/b/after") == []
        assert (await broker.groups.get("t", "import-7")).completions[0].remaining == 1
        await world.clock.advance(hours=1)
        assert await ack(broker) == 1
        await world.clock.settle()
        async with broker.consumer(
            "a/b/after", "s", position="earliest", serializer=escapement.JSON
        ) as inbox:
            assert await arrived(inbox) == []
            await world.clock.advance(minutes=5)
            (message,) = await arrived(inbox)
            assert (message.value, message.key, message.priority) == ({"import": 7}, "k", 3)
            assert message.properties == {"n": 7}
        (completion,) = (await broker.groups.get("t", "import-7")).completions
        assert (completion.state, completion.remaining) == ("fired", None)
        assert [(one.name, one.state, one.messages) for one in await broker.groups.list("t")] == [
            ("import-7", "closed", 5),
            ("other", "open", 1),
        ]


async def test_consumer_sees_the_group_of_a_message_after_a_checkpoint(
    mock_clock: MockClock,
) -> None:
    """Q10: the group is durable with the message, in the log and in the index."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"a", b"b", b"c"], groups=["g", None, "h"])
        await producer.send(b"d", group="i")
        await world.checkpoint()
        await producer.send(b"e")
        await producer.send(b"f", group="g")
        async with broker.consumer("t", "s") as inbox:
            found = [message.group for message in await arrived(inbox)]
        assert found == ["g", None, "h", "i", None, "g"]
        assert [(await broker.show(offset, "t")).group for offset in (0, 1)] == ["g", None]
        read = [message.group async for page in broker.read("t") for message in page]
        assert read == found


async def test_group_without_pending_messages_fires_at_once(mock_clock: MockClock) -> None:
    """Q10: no message has joined the group, or all of its messages are done."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 3, groups="g")
        await ack(broker)
        await broker.groups.close("t", "g", "s", FollowUp(b"1", "after"))
        await broker.groups.close("t", "nobody", "s", FollowUp(b"2", "after"))
        assert sorted(await followed(world)) == [b"1", b"2"]


async def test_closing_a_group_again_changes_nothing_and_conflicts_if_it_differs(
    mock_clock: MockClock,
) -> None:
    """Q10: before and after the follow-up fires, and after a restart."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send(b"x", group="g")
        first = await producer.close_group("g", "s", DONE)
        assert await producer.close_group("g", "s", DONE) == first
        with pytest.raises(Conflict):
            await producer.close_group("g", "s", FollowUp(b"else", "after"))
        with pytest.raises(Conflict):
            await producer.close_group("g", "s", FollowUp(b"done", "elsewhere"))
        with pytest.raises(NotFound):
            await producer.close_group("g", "nobody", DONE)
        with pytest.raises(NotFound):
            await broker.groups.close("no-topic", "g", "s", DONE)
        await ack(broker)
        assert await followed(world) == [b"done"]
        await world.crash()
        await world.restart()
        async with world.connect() as after:
            again = await after.groups.close("t", "g", "s", DONE)
            assert again.completions[0].state == "fired"
            await after.admin(
                "subscriptions.seek", topic="t", subscription="s", position="earliest"
            )
            await after.groups.close("t", "g", "s", DONE)
            await ack(after)
        assert await followed(world) == [b"done"]


async def test_publishing_to_a_closed_group_is_refused(mock_clock: MockClock) -> None:
    """Q10: the whole batch is refused. A duplicate of an earlier message is still confirmed."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send(b"x", group="g", sequence=0)
        await producer.close_group("g", "s", DONE)
        with pytest.raises(GroupClosed):
            await producer.send(b"y", group="g")
        with pytest.raises(GroupClosed):
            await producer.send_many([b"y", b"z"], groups=["h", "g"])
        assert (await producer.send(b"x", group="g", sequence=0)).duplicate
        await producer.send(b"z", group="h")
        assert [one.messages for one in await broker.groups.list("t")] == [1, 1]
        await world.crash()
        await world.restart()
        async with world.connect() as after, await after.producer("t") as again:
            with pytest.raises(GroupClosed):
                await again.send(b"y", group="g")


async def test_each_subscription_has_its_own_follow_up(mock_clock: MockClock) -> None:
    """Q10: for shared and for exclusive subscriptions."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        async with broker.consumer("t", "e", kind="exclusive") as inbox:
            await producer.send_many([b"x"] * 3, groups="g")
            for name in ("s", "e"):
                await producer.close_group("g", name, FollowUp(name.encode(), "after"))
            await ack(broker)
            assert await followed(world) == [b"s"]
            await inbox.ack([message.id for message in await arrived(inbox)], durable=True)
            assert await followed(world) == [b"s", b"e"]


async def test_invalid_groups_and_follow_ups_are_refused(mock_clock: MockClock) -> None:
    """Q10: invalid names, batches and follow-ups, and those beyond a limit."""
    limits = BrokerLimits(groups=2, follow_up_bytes=1000)
    config = BrokerConfig(limits=limits, seed=0)
    async with started(config=config) as (_, broker):
        producer = await broker.producer("t")
        for wrong in ("", "a b", "x" * 201, 7):
            with pytest.raises(InvalidRequest):
                await producer.send(b"x", group=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await producer.send_many([b"x"], groups=["a", "b"])
        batch = escapement.MessageBatch(
            escapement.Blobs.of([b"x"] * 2), groups=escapement.Blobs.of([b"a\0", b"a"])
        )
        with pytest.raises(InvalidRequest):
            await producer.send_batch(batch)
        for then in (FollowUp(b"", "a b"), FollowUp(b"", "x", delay="9999w")):
            with pytest.raises(InvalidRequest):
                await producer.close_group("g", "s", then)
        with pytest.raises(LimitExceeded):
            await producer.close_group("g", "s", FollowUp(b"x" * 1000, "after"))
        await producer.send(b"x", group="a")
        await producer.close_group("b", "s", DONE)
        with pytest.raises(LimitExceeded):
            await producer.send(b"x", group="c")
        with pytest.raises(LimitExceeded):
            await producer.close_group("c", "s", DONE)
        await broker.groups.delete("t", "a")
        await producer.send(b"x", group="c")
        with pytest.raises(NotFound):
            await broker.groups.get("t", "a")


# -- what counts as done --------------------------------------------------------------------


async def test_cancelled_expired_and_dead_messages_count_as_done(
    mock_clock: MockClock,
) -> None:
    """Q10: a dead letter belongs to no group."""
    async with started() as (world, broker):
        policy = {"max_deliveries": 1, "max_backoff_ms": 1000}
        await broker.admin("subscriptions.update", topic="t", subscription="s", policy=policy)
        producer = await broker.producer("t")
        later = [timedelta(hours=9), timedelta(hours=1), None]
        await producer.send_many([b"cancelled", b"expires", b"dies"], groups="g", delay=later)
        await producer.close_group("g", "s", DONE)
        async with broker.consumer("t", "s") as inbox:
            (dies,) = await arrived(inbox)
            await dies.nack()
        await world.clock.advance(seconds=2)
        assert (await broker.groups.get("t", "g")).completions[0].remaining == 2
        async with broker.consumer("t-s-DLQ", "dead-letters") as inbox:
            assert [(m.value, m.group) for m in await arrived(inbox)] == [(b"dies", None)]
        await broker.admin("topics.update", topic="t", policy={"ttl_ms": "1h"})
        await world.clock.advance(hours=2, seconds=10)
        assert await followed(world) == []
        assert (await broker.groups.get("t", "g")).completions[0].remaining == 1
        await broker.cancel([0], topic="t")
        assert await followed(world) == [b"done"]


async def test_group_waits_for_a_cancelled_message_returned_by_an_exclusive_consumer(
    mock_clock: MockClock,
) -> None:
    """Q10: an exclusive subscription finds the returned message in the log only."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        async with broker.consumer("t", "e", kind="exclusive") as inbox:
            await producer.send_many([b"x"] * 3, groups="g")
            messages = await arrived(inbox)
            await inbox.ack(messages[2].id, durable=True)
        outcome = await broker.cancel(messages[1])
        assert outcome[0].handed == ("e",)
        await producer.close_group("g", "e", DONE)
        await world.clock.settle()
        assert (await broker.groups.get("t", "g")).completions[0].remaining == 2
        async with broker.consumer("t", "e", kind="exclusive") as inbox:
            assert [message.offset for message in await arrived(inbox)] == [0, 1]
            await inbox.ack([0], durable=True)
            assert await followed(world) == []
            await inbox.ack([1], durable=True)
        assert await followed(world) == [b"done"]


async def test_group_waits_for_a_cancelled_message_that_is_in_flight(
    mock_clock: MockClock,
) -> None:
    """Q10: one subscription still has the message, the other is done; the same after a crash."""
    async with started() as (world, broker):
        await broker.admin("subscriptions.create", topic="t", subscription="other")
        producer = await broker.producer("t")
        await producer.send(b"x", group="g")
        for name in ("s", "other"):
            await producer.close_group("g", name, FollowUp(name.encode(), "after"))
        async with broker.consumer("t", "s") as inbox:
            (message,) = await arrived(inbox)
            outcome = await broker.cancel(message)
            assert outcome[0].done
            assert await followed(world) == [b"other"]
            await world.crash()
        await world.restart()
        assert await followed(world) == [b"other"]
        async with world.connect() as after:
            assert await ack(after) == 1
        assert await followed(world) == [b"other", b"s"]


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_message_published_before_the_subscription_counts_as_done(
    mock_clock: MockClock, engine: Engine, kind: str
) -> None:
    """Q10: a shared subscription gets those earlier messages that fall due later."""
    async with started(engine=engine) as (world, broker):
        producer = await broker.producer("t")
        delays = [None, timedelta(hours=1), timedelta(hours=2), timedelta(hours=3)]
        await producer.send_many([b"0", b"1", b"2", b"3"], groups="g", delay=delays)
        await broker.reschedule([3], delay=timedelta(hours=4), topic="t")
        await world.clock.advance(hours=1)
        await broker.admin("subscriptions.create", topic="t", subscription="late", kind=kind)
        await producer.send(b"4", group="g", delay=timedelta(hours=1))
        await producer.close_group("g", "late", DONE)
        await world.clock.settle()
        wanted = {"shared": [b"4", b"2", b"3"], "exclusive": [b"4"]}[kind]
        assert (await broker.groups.get("t", "g")).completions[0].remaining == len(wanted)
        await world.clock.advance(hours=4)
        async with broker.consumer("t", "late", kind=kind) as inbox:
            messages = await arrived(inbox)
            assert sorted(message.value for message in messages) == sorted(wanted)
            await inbox.ack([message.id for message in messages[1:]], durable=True)
            assert await followed(world) == []
            await inbox.ack([messages[0].id], durable=True)
        assert await followed(world) == [b"done"]


async def test_message_rescheduled_to_before_the_subscription_counts_as_done(
    mock_clock: MockClock,
) -> None:
    """Q10: the group waits for the message until the subscription no longer gets it."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"0", b"1"], groups="g", delay=timedelta(hours=3))
        begins_at = testing.START_MS / 1000 + 2 * 3600
        async with broker.consumer(
            "t", "late", position=datetime.fromtimestamp(begins_at, UTC)
        ) as inbox:
            await producer.close_group("g", "late", DONE)
            await broker.run_now([1], topic="t")
            assert await followed(world) == []
            await broker.reschedule([0], delay=timedelta(hours=1), topic="t")
            assert await followed(world) == [b"done"]
            await world.clock.advance(hours=4)
            assert await arrived(inbox) == []


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
async def test_message_forgotten_before_the_subscription_began_counts_as_done(
    mock_clock: MockClock, kind: str
) -> None:
    """Q10: a subscription at earliest gets only the messages that the log still has."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"0", b"1"], groups="g")
        await ack(broker)
        policy = {"retention_ms": 0}
        await broker.admin("namespaces.update", namespace="public/default", policy=policy)
        await world.server.set_table_parallelism(2)
        await world.checkpoint()
        await finish(world, world.server.services.forgetter.round)
        await producer.send(b"2", group="g")
        names = {"topic": "t", "subscription": "late"}
        await broker.admin("subscriptions.create", **names, kind=kind, position="earliest")
        await producer.close_group("g", "late", DONE)
        assert await followed(world) == []
        async with broker.consumer("t", "late", kind=kind) as inbox:
            (message,) = await arrived(inbox)
            assert message.value == b"2"
            await inbox.ack(message.id, durable=True)
        assert await followed(world) == [b"done"]


async def test_follow_up_of_a_deleted_subscription_is_void(mock_clock: MockClock) -> None:
    """Q10: a new subscription of the same name can have a follow-up for the same group."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send(b"x", group="g")
        await producer.close_group("g", "s", DONE)
        await broker.admin("subscriptions.delete", topic="t", subscription="s")
        assert (await broker.groups.get("t", "g")).completions[0].state == "void"
        await broker.admin("subscriptions.create", topic="t", subscription="s", position="earliest")
        await ack(broker)
        assert await followed(world) == []
        with pytest.raises(GroupClosed):
            await producer.send(b"y", group="g")
        await producer.close_group("g", "s", FollowUp(b"again", "after"))
        assert await followed(world) == [b"again"]
        states = [one.state for one in (await broker.groups.get("t", "g")).completions]
        assert states == ["void", "fired"]


async def test_seek_makes_messages_of_a_group_pending_again(mock_clock: MockClock) -> None:
    """Q10: also after a crash. A follow-up that has fired does not fire again."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 4, groups="g")
        await producer.close_group("g", "s", DONE)
        await ack(broker, most=3)

        async def seek(to: str) -> None:
            await broker.admin("subscriptions.seek", topic="t", subscription="s", position=to)
            await world.clock.settle()

        await seek("earliest")
        assert (await broker.groups.get("t", "g")).completions[0].remaining == 4
        await ack(broker, most=3)
        await seek("offset:2")
        assert (await broker.groups.get("t", "g")).completions[0].remaining == 2
        await world.crash()
        await world.restart()
        async with world.connect() as after:
            assert (await after.groups.get("t", "g")).completions[0].remaining == 2
            assert await followed(world) == []
            await ack(after, most=1)
            assert await followed(world) == []
            await after.admin("subscriptions.seek", topic="t", subscription="s", position="latest")
        assert await followed(world) == [b"done"]


# -- across crashes --------------------------------------------------------------------------


@pytest.mark.parametrize("checkpoints", ["none", "before", "between", "after"])
async def test_groups_survive_a_crash_unchanged(mock_clock: MockClock, checkpoints: str) -> None:
    """Q10: from the journal, from a checkpoint, or from both; also after a second crash."""
    async with testing.start(config=CONFIG) as world:
        async with world.connect(settings=HURRIED) as broker:
            await broker.admin("subscriptions.create", topic="t", subscription="s")
            producer = await broker.producer("t")
            if checkpoints == "before":
                await world.checkpoint()
            await producer.send_many([b"x"] * 3, groups=["g", "h", "g"])
            await broker.groups.delete("t", "h")
            if checkpoints == "between":
                await world.checkpoint()
            await producer.send_many([b"x"] * 3, groups=["h", "g", None])
            await producer.close_group("g", "s", DONE)
            await ack(broker, most=2)
            if checkpoints == "after":
                await world.checkpoint()
        for _ in range(2):
            await world.crash()
            await world.restart()
            async with world.connect() as broker:
                found = {one.name: one for one in await broker.groups.list("t")}
                assert {name: one.messages for name, one in found.items()} == {"g": 3, "h": 1}
                assert found["g"].completions[0].remaining == 2
            await world.checkpoint()
        async with world.connect() as broker:
            await ack(broker)
        assert await followed(world) == [b"done"]


async def import_all(world: World) -> None:
    """Create, close and complete a group. Continue where the last attempt ended."""
    async with world.connect(settings=HURRIED) as broker:
        with suppress(escapement.AlreadyExists):
            await broker.admin("subscriptions.create", topic="t", subscription="s")
        producer = await broker.producer("t", name="import", send_timeout=(1, "s"))
        for sequence in range(producer.next_sequence, 2):
            await producer.send(b"x", group="g", sequence=sequence)
        await world.checkpoint()
        await producer.close_group("g", "s", DONE)
        await ack(broker)
        await world.clock.settle()


async def test_follow_up_fires_once_after_a_crash_at_any_step(
    mock_clock: MockClock, engine: Engine
) -> None:
    """Q10: steps are publishing, closing, acknowledging, firing and moving the follow-up."""
    faulty = FaultyEngine(engine)
    async with testing.start(config=CONFIG, engine=faulty) as world:

        async def attempt() -> None:
            with suppress(EscapementError), trio.move_on_after(3):  # acks wait for the database
                await import_all(world)

        for number in count(1, 23 if engine.kind == "mysql" else 3):
            faulty.before = dies = DiesAt(number)
            await finish(world, attempt)
            await world.crash()
            faulty.before = no_fault
            await world.restart()
            await finish(world, lambda: import_all(world))
            assert await followed(world) == [b"done"]
            async with world.connect() as broker:
                await broker.admin("topics.delete", topic="after")
                await broker.admin("topics.delete", topic="t")
            if not dies.dead:
                break
        assert number > 40


@pytest.mark.parametrize("arrived_there", [True, False])
async def test_follow_up_fires_once_after_a_lost_commit_reply(
    mock_clock: MockClock, arrived_there: bool
) -> None:
    """Q10: the reply to the commit of the closing, the acknowledgement or the firing is lost."""
    lost = Once("commit", OutcomeUnknown("the reply was lost"))
    engine = FaultyEngine(SqliteEngine.in_memory())
    if arrived_there:
        engine.after = lost
    else:
        engine.before = lost
    async with started(engine=engine) as (world, broker):
        producer = await broker.producer("t")
        for number in range(3):  # lost reply: of the closing, the ack, the firing
            group = f"g{number}"
            await producer.send(b"x", group=group)
            if number == 0:
                lost.arm()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    producer.close_group, group, "s", FollowUp(group.encode(), "after")
                )
                await world.clock.advance(seconds=1)
            async with broker.consumer("t", "s") as inbox:
                (message,) = await arrived(inbox)
                if number == 1:
                    lost.arm()
                await message.ack()
                if number == 2:
                    await inbox.flush_acks()
                    lost.arm()
                await world.clock.advance(seconds=1)
        await world.clock.advance(seconds=5)
        assert await followed(world) == [b"g0", b"g1", b"g2"]


async def test_publish_during_the_closing_of_a_group_waits_for_it(
    mock_clock: MockClock,
) -> None:
    """Q10: a batch under way joins the group. A later batch waits, and is then refused."""
    held = Held()
    async with started(run=held) as (world, broker):
        one, two = await broker.producer("t"), await broker.producer("t")
        await one.send(b"first", group="g")
        await broker.admin("topics.create", topic="after")
        refused: list[EscapementError] = []

        async def late() -> None:
            try:
                await two.send(b"late", group="g")
            except GroupClosed as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(partial(one.send, b"under way", group="g"))
                await held.reached()
                nursery.start_soon(broker.groups.close, "t", "g", "s", DONE)
                await world.clock.settle()
                nursery.start_soon(late)
                await world.clock.settle()
                assert refused == []
            await world.clock.advance(seconds=5)
        assert len(refused) == 1
        assert (await broker.groups.get("t", "g")).completions[0].remaining == 2
        assert await ack(broker) == 2
        assert await followed(world) == [b"done"]


async def test_seek_while_the_follow_up_fires_does_not_undo_it(mock_clock: MockClock) -> None:
    """Q10: both are in one group commit. Closing again reports that the follow-up has fired."""
    held = Held()
    async with started(run=held) as (world, broker):
        producer = await broker.producer("t")
        await producer.send(b"x", group="g")
        await producer.close_group("g", "s", DONE)
        async with broker.consumer("t", "s") as inbox, trio.open_nursery() as nursery:
            (message,) = await arrived(inbox)
            with held.hold(COMMIT):
                # A commit under way. The acknowledgement, the firing and the seek wait behind it.
                nursery.start_soon(producer.send, b"y")
                await held.reached()
                await message.ack()
                await world.clock.settle()
            with held.hold(COMMIT):
                await held.reached()
                nursery.start_soon(inbox.seek, "earliest")
                await world.clock.settle()
            await world.clock.settle()
        assert await followed(world) == [b"done"]
        (completion,) = (await producer.close_group("g", "s", DONE)).completions
        assert completion.state == "fired"
        await ack(broker)
        assert await followed(world) == [b"done"]


async def test_inbox_entry_with_a_group_is_stuck(mock_clock: MockClock) -> None:
    """Q10: the inbox shows the reason."""
    async with started() as (world, broker):
        batch = escapement.MessageBatch(
            escapement.Blobs.of([b"x"]), groups=escapement.Blobs.of([b"g"])
        )
        await post(world, [InboxEntry("public/default/t", "1", batch.encode(), 1)])
        await world.clock.settle()
        (row,) = await broker.admin("inbox.list")
        assert (row["stuck"], row["reason"]) == (1, "an inbox entry cannot belong to a group")
        assert await broker.groups.list("t") == []


async def test_follow_up_waits_for_a_database_outage_to_end(mock_clock: MockClock) -> None:
    """Q10: then it fires without further traffic."""
    outage = Outage()
    async with started(engine=outage.engine) as (world, broker):
        producer = await broker.producer("t")
        await producer.send(b"x", group="g")
        await producer.close_group("g", "s", DONE)
        async with broker.consumer("t", "s") as inbox:
            (message,) = await arrived(inbox)
            outage.unreachable()
            await message.ack()
            await world.clock.advance(seconds=10)
            with pytest.raises(StorageUnavailable):
                await broker.groups.close("t", "h", "s", DONE)
            outage.over()
            await world.clock.advance(seconds=10)
        assert await followed(world) == [b"done"]
        await producer.send(b"open", group="h")


# -- over time ------------------------------------------------------------------------------


async def test_finished_group_is_forgotten_and_its_name_is_free(mock_clock: MockClock) -> None:
    """Q10: a day after the follow-up fired or became void. Open and waiting groups stay."""
    async with started() as (world, broker):
        await broker.admin("subscriptions.create", topic="t", subscription="gone")
        producer = await broker.producer("t")
        for group in ("fired", "void", "both"):
            await producer.send(b"x", group=group)
        await producer.close_group("fired", "s", DONE)
        await producer.close_group("void", "gone", DONE)
        await ack(broker)
        await producer.send_many([b"x"] * 2, groups=["open", "waits"], delay=timedelta(days=30))
        await producer.close_group("waits", "s", DONE)
        await producer.close_group("both", "s", DONE)
        await producer.close_group("both", "gone", DONE)
        assert await followed(world) == [b"done"] * 2
        await world.clock.advance(hours=23)
        assert len(await broker.groups.list("t")) == 5
        await world.clock.advance(hours=2)
        names = [one.name for one in await broker.groups.list("t")]
        assert names == ["both", "open", "void", "waits"]
        await broker.admin("subscriptions.delete", topic="t", subscription="gone")
        await world.clock.advance(minutes=2)
        assert [one.name for one in await broker.groups.list("t")] == ["open", "waits"]
        await producer.send(b"y", group="fired")
        await world.crash()
        await world.restart()
        async with world.connect() as after:
            found = {one.name: (one.state, one.messages) for one in await after.groups.list("t")}
        assert found == {"fired": ("open", 1), "open": ("open", 1), "waits": ("closed", 1)}


async def test_deleted_group_never_fires(mock_clock: MockClock) -> None:
    """Q10: the name is free at once, even before a checkpoint."""
    async with started() as (world, broker):
        producer = await broker.producer("t")
        await producer.send_many([b"x"] * 2, groups="g")
        await producer.close_group("g", "s", DONE)
        await broker.groups.delete("t", "g")
        await producer.send(b"y", group="g")
        await producer.close_group("g", "s", FollowUp(b"second", "after"))
        assert (await broker.groups.get("t", "g")).messages == 1
        await world.crash()
        await world.restart()
        async with world.connect() as after:
            assert (await after.groups.get("t", "g")).completions[0].remaining == 1
            await ack(after)
        assert await followed(world) == [b"second"]


async def test_group_outlives_the_log_generation_of_its_messages(mock_clock: MockClock) -> None:
    """Q10: pending messages are relocated, the others are deleted, and the follow-up fires."""
    async with started() as (world, broker):
        policy = {"retention_ms": "1h"}
        await broker.admin("namespaces.update", namespace="public/default", policy=policy)
        producer = await broker.producer("t")
        # Most bytes of this log generation are acknowledged below.
        await producer.send_many([b"x" * 100_000] * 20, groups="g")
        await producer.send(b"later", group="g", delay=timedelta(days=3))
        await producer.close_group("g", "s", DONE)
        assert await ack(broker) == 20
        await world.checkpoint()
        first = world.server.services.log.current.id
        await world.clock.advance(days=1, hours=2)
        await finish(world, world.server.services.housekeeper.round)
        await (await broker.producer("other")).send(b"in the next generation")
        await world.checkpoint()
        for _ in range(2):
            await finish(world, world.server.services.forgetter.round)
        assert first not in [one.id for one in world.server.services.log.generations]
        await world.crash()
        await world.restart()
        async with world.connect() as after:
            assert (await after.groups.get("t", "g")).messages == 21
            await world.clock.advance(days=2)
            assert await followed(world) == []
            async with after.consumer("t", "s") as inbox:
                (message,) = await arrived(inbox)
                assert message.group == "g"
                await message.ack(durable=True)
        assert await followed(world) == [b"done"]
