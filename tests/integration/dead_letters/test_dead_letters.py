"""A message that fails its last attempt has one dead letter, whatever happens meanwhile."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import msgpack
import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.broker.subscription.dead_letters.dead_letter import (
    DEAD_LETTERS_SUBSCRIPTION,
    MAX_MESSAGE_BYTES,
)
from escapement.errors import InvalidRequest, NotFound
from escapement.message import Blobs, MessageBatch
from escapement.names import TopicName
from escapement.protocol.limits import MAX_DETAIL_CHARS
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World, arrived
from support.faults.held_calls import COMMIT, ORDER, Held, uncached

CALM = BrokerConfig(ack_wait_ms=10_000, seed=0)
NAMES = {"topic": "x", "subscription": "s"}
TWICE = {"max_deliveries": 2, "jitter": 0}
DLQ = "public/default/x-s-DLQ"
KINDS = ["shared", "exclusive"]


async def dead_letters(broker: escapement.Broker, **names: Any) -> list[dict[str, Any]]:
    return await broker.admin("dlq.list", **{**NAMES, **names}, count=1000)


async def settled(world: World) -> None:
    """Wait until the inbox relay has moved dead letters to their topic."""
    for _ in range(3):
        await world.clock.advance(seconds=1)


async def test_dead_letter_next_to_a_message_with_a_group_is_redriven(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1, Q10: other messages in a dead-letter topic do not matter."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await (await broker.producer("x")).send(b"dead")
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)])
            await settled(world)
            await (await broker.producer(DLQ)).send(b"other", group="g")
            assert await broker.admin("dlq.redrive", **NAMES) == {"redriven": 1}
            await settled(world)
            assert [m.payload for m in await arrived(inbox)] == [b"dead"]


@pytest.mark.parametrize("verb", ["dlq.purge", "dlq.redrive"])
async def test_end_of_a_dead_letter_in_flight_lets_the_next_one_be_delivered(
    verb: str, mock_clock: trio.testing.MockClock
) -> None:
    """V1: the consumer of the dead letters may have one at a time, and does not answer."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await (await broker.producer("x")).send_many([b"1", b"2"])
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)])
            await settled(world)
        one = {
            "topic": DLQ,
            "subscription": DEAD_LETTERS_SUBSCRIPTION,
            "policy": {"max_in_flight": 1},
        }
        await broker.admin("subscriptions.update", **one)
        async with broker.consumer(DLQ, DEAD_LETTERS_SUBSCRIPTION) as inbox:
            (first,) = await arrived(inbox)
            await broker.admin(verb, **NAMES, offsets=[first.offset])
            assert [m.payload for m in await arrived(inbox)] == [b"2"]


@pytest.mark.parametrize("kind", KINDS)
async def test_message_that_is_too_large_for_a_dead_letter_is_retried_after_an_hour(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V1, invariant 4: nothing else happens in its topic meanwhile."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=policy)
        await (await broker.producer("x")).send(bytes(MAX_MESSAGE_BYTES))
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)])
            await settled(world)
            assert await dead_letters(broker) == []
            await world.clock.advance(minutes=59)
            assert await arrived(inbox) == []
            found: list[escapement.Message] = []
            for _ in range(60):
                await world.clock.advance(seconds=1)
                found += await arrived(inbox)
            assert [m.attempt for m in found] == [2]


@pytest.mark.parametrize("kind", KINDS)
async def test_message_that_fails_its_last_attempt_is_dead_lettered_with_the_reason(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V1: after nack, timeout and disconnect. The dead letter keeps all fields."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=TWICE)
        producer = await broker.producer("x")
        published_ms = world.clock.now_ms()
        delay = timedelta(0) if kind == "exclusive" else timedelta(seconds=5)
        for name in ("nack", "timeout", "disconnect", "good"):
            await producer.send(name.encode(), key=name, properties={"n": 7}, delay=delay)
        due_ms = published_ms + delay // timedelta(milliseconds=1)
        await world.clock.advance(seconds=5)
        wait = timedelta(seconds=10)
        async with broker.consumer("x", "s", kind=kind, ack_wait=wait) as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)], timedelta(0))
            messages = {m.payload: m for m in await arrived(inbox)}
            assert {m.attempt for m in messages.values()} == {2}
            await messages[b"good"].ack(durable=True)
            await messages[b"nack"].nack(timedelta(minutes=1))
            assert await messages[b"disconnect"].extend(timedelta(minutes=1))
            await world.clock.advance(seconds=20)
            assert await arrived(inbox) == []
        await settled(world)
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await world.clock.advance(days=30)
            assert await arrived(inbox) == []
        found = await dead_letters(broker)
        assert {row["payload"]: row["reason"] for row in found} == {
            b"nack": "nack",
            b"timeout": "timeout",
            b"disconnect": "disconnect",
        }
        dead_letter = await broker.admin("dlq.show", **NAMES, offset=found[0]["offset"])
        assert (dead_letter["attempts"], dead_letter["subscription"]) == (2, "s")
        assert dead_letter["original_topic"] == "public/default/x"
        assert (dead_letter["original_due_at_ms"], dead_letter["published_at_ms"]) == (
            due_ms,
            published_ms,
        )
        assert dead_letter["key"] == dead_letter["payload"].decode() == dead_letter["reason"]
        assert dead_letter["properties"]["n"] == 7
        (stats,) = await broker.admin("subscriptions.list", topic="x")
        assert (stats["dead_lettered"], stats["unacknowledged"]) == (3, 0)
        async with broker.consumer(DLQ, "mine", position="earliest") as inbox:
            copies = await arrived(inbox)
            assert sorted(m.key for m in copies) == ["disconnect", "nack", "timeout"]
            assert {m.properties["dead_letter_offset"] for m in copies} == {0, 1, 2}


@pytest.mark.parametrize("kind", KINDS)
async def test_rejected_message_becomes_a_dead_letter_at_its_first_attempt(
    kind: str, mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """V1, B16: although the subscription permits any number of deliveries; also after a crash."""
    async with testing.start(config=CALM, engine=engine) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, kind=kind)
        producer = await broker.producer("x")
        await producer.send_many([b"bad", b"good", b"bad too"], keys=["a", "b", "c"])
        async with broker.consumer("x", "s", kind=kind) as inbox:
            bad, good, other = await arrived(inbox)
            await bad.reject("no customer: żółw")
            await inbox.reject([other.id])
            await settled(world)
            found = await dead_letters(broker)
            assert [(row["payload"], row["reason"], row["attempts"]) for row in found] == [
                (b"bad", "rejected", 1),
                (b"bad too", "rejected", 1),
            ]
            assert [row.get("detail") for row in found] == ["no customer: żółw", None]
            await good.ack(durable=True)
        await world.crash()
        await world.restart()
        await world.clock.advance(seconds=60)
        async with broker.consumer("x", "s", kind=kind) as inbox:
            await world.clock.advance(days=3)
            assert await arrived(inbox) == []
        assert await dead_letters(broker) == found


async def test_detail_of_a_reject_stays_with_its_dead_letter(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: a message that is sent back has no detail, until it is rejected again."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        await (await broker.producer("x")).send_many([b"1", b"2", b"3"], properties=[{"n": 7}] * 3)
        async with broker.consumer("x", "s") as inbox:
            one, *others = await arrived(inbox)
            await inbox.reject(others, "HTTP 410")
            await one.reject("x" * MAX_DETAIL_CHARS)
            await settled(world)
            found = await dead_letters(broker)
            details = ["x" * MAX_DETAIL_CHARS, "HTTP 410", "HTTP 410"]
            assert [row["detail"] for row in found] == details
            await broker.admin("dlq.redrive", **NAMES, offsets=[found[1]["offset"]])
            await settled(world)
            (again,) = await arrived(inbox)
            assert again.properties == {"n": 7}
            for wrong in ("x" * (MAX_DETAIL_CHARS + 1), "\ud800", 410):
                with pytest.raises(InvalidRequest, match="detail"):
                    await again.reject(wrong)  # type: ignore[arg-type]
            await again.reject()
            await settled(world)
            details.pop(1)
            assert [row.get("detail") for row in await dead_letters(broker)] == [*details, None]
        async with broker.consumer(DLQ, "mine", position="earliest") as inbox:
            first, *_ = await arrived(inbox)
            await first.reject("once more")
            await settled(world)
            theirs = {"topic": DLQ, "subscription": "mine"}
            (twice,) = await broker.admin("dlq.list", **theirs)
            assert twice["detail"] == "once more"
            assert await broker.admin("dlq.redrive", **theirs) == {"redriven": 1}
            await settled(world)
            (back,) = await arrived(inbox)
            assert back.properties == first.properties


async def test_redriven_message_is_unchanged_and_delivered_once(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: redrive one, then all, and purge the rest; each takes effect once, across a crash."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
            producer = await broker.producer("x")
            await producer.send_many([b"%d" % n for n in range(6)], properties=[{"n": 1}] * 6)
            async with broker.consumer("x", "s") as inbox:
                await inbox.nack([m.id for m in await arrived(inbox)])
                await settled(world)
                first, second, *_ = await dead_letters(broker)
                only = [first["offset"], 99]
                assert await broker.admin("dlq.redrive", **NAMES, offsets=only) == {"redriven": 1}
                assert await broker.admin("dlq.redrive", **NAMES, offsets=only) == {"redriven": 0}
                with pytest.raises(NotFound):
                    await broker.admin("dlq.show", **NAMES, offset=first["offset"])
                with pytest.raises(NotFound):
                    await broker.admin("dlq.show", **NAMES, offset=99)
                await settled(world)
                (again,) = await arrived(inbox)
                assert (again.payload, again.properties) == (first["payload"], {"n": 1})
                assert (again.attempt, again.redelivered) == (1, False)
                await again.ack(durable=True)
                only = [second["offset"]]
                assert await broker.admin("dlq.purge", **NAMES, offsets=only) == {"purged": 1}
            assert len(await dead_letters(broker)) == 4
            counted, after = [], None
            while not counted or after:
                page = await broker.admin("dlq.count", **NAMES, count=3, after=after)
                counted, after = [*counted, page["dead_letters"]], page["next"]
            assert sum(counted) == 4
            assert await broker.admin("dlq.redrive", **NAMES, count=3) == {"redriven": 3}
            await world.crash()
        await world.restart()
        async with world.connect() as broker, broker.consumer("x", "s") as inbox:
            await settled(world)
            assert len(await arrived(inbox)) == 3
            assert len(await dead_letters(broker)) == 1
            assert await broker.admin("dlq.purge", **NAMES) == {"purged": 1}
            assert await dead_letters(broker) == []


async def test_stopping_the_broker_dead_letters_no_in_flight_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: neither a clean stop nor a crash counts as a failed delivery."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
            await (await broker.producer("x")).send(b"precious")
        for way in (world.stop, world.crash, world.stop):
            async with world.connect() as broker, broker.consumer("x", "s") as inbox:
                (message,) = await arrived(inbox)
                assert message.payload == b"precious"
                await way()
            await world.restart()
        async with world.connect() as broker:
            assert await dead_letters(broker) == []
            async with broker.consumer("x", "s") as inbox:
                (message,) = await arrived(inbox)
                await message.nack()
                await settled(world)
                assert len(await dead_letters(broker)) == 1


async def test_message_acknowledged_before_dead_lettering_has_no_dead_letter(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V2: another consumer acknowledges it right after its last attempt failed."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await (await broker.producer("x")).send_many([b"a", b"b", b"c"])
        async with broker.consumer("x", "s") as inbox, broker.consumer("x", "s") as other:
            both = [*await arrived(inbox), *await arrived(other)]
            assert len(both) == 3
            for message in both:
                await message.nack()
            await other.ack([0, 1], durable=True)
            await settled(world)
            assert [row["original_offset"] for row in await dead_letters(broker)] == [2]


async def test_show_reports_state_and_attempts_of_a_dead_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q2."""
    held = Held()
    async with testing.start(config=CALM, run=held) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy=TWICE)
        await (await broker.producer("x")).send(b"m")
        async with broker.consumer("x", "s") as inbox:
            for attempt in (1, 2):
                (message,) = await arrived(inbox)
                assert message.attempt == attempt
                with held.hold(COMMIT):
                    await message.nack(timedelta(0))
                    await held.reached()
                    (one,) = (await broker.show(message)).subscriptions
            assert (one.state, one.attempts) == ("to be dead-lettered", 2)
            await settled(world)
            (one,) = (await broker.show(0, "x")).subscriptions
            assert (one.state, one.attempts) == ("acknowledged", None)


async def test_subscriptions_sharing_a_dead_letter_topic_list_only_their_own(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: a dead-letter topic can serve several subscriptions."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        policy = {"max_deliveries": 1, "dead_letter_topic": "failed"}
        for name in ("s", "t"):
            await broker.admin("subscriptions.create", topic="x", subscription=name, policy=policy)
        await (await broker.producer("x")).send_many([b"a", b"b"])
        for name, offset in (("s", 0), ("t", 1)):
            async with broker.consumer("x", name) as inbox:
                await arrived(inbox)
                await inbox.nack([offset])
                await inbox.ack([1 - offset], durable=True)
        await settled(world)
        for name, payload in (("s", b"a"), ("t", b"b")):
            assert [row["payload"] for row in await dead_letters(broker, subscription=name)] == [
                payload
            ]
        assert await broker.admin("dlq.purge", **NAMES) == {"purged": 1}
        assert len(await dead_letters(broker, subscription="t")) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_topic_can_be_deleted_while_its_messages_are_dead_lettered(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """Q7: dead messages that are missing from the index are not treated as damage."""
    held = Held()
    async with testing.start(config=CALM, run=held) as world, world.connect() as broker:
        policy = {"max_deliveries": 1}
        await broker.admin("subscriptions.create", **NAMES, kind=kind, policy=policy)
        await (await broker.producer("x")).send(b"m")
        async with trio.open_nursery() as nursery:
            async with broker.consumer("x", "s", kind=kind) as inbox:
                (message,) = await arrived(inbox)
                with held.hold(COMMIT):
                    await message.nack()
                    await held.reached()  # the dead-letter topic is being created
                    nursery.start_soon(world.server.delete_topic, TopicName.parse("x"))
                    await trio.testing.wait_all_tasks_blocked()
        server = world.server
        await world.clock.advance(minutes=1)  # several rounds of the housekeeper
        assert world.server is server
        assert (await broker.admin("topics.list"))["topics"] == [DLQ]


async def test_invalid_dead_letter_topic_is_refused(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES)
        for policy, said in (
            ({"max_deliveries": 3, "dead_letter_topic": "x"}, "of its own subscription s"),
            ({"dead_letter_topic": "x"}, "of its own subscription s"),
            ({"dead_letter_topic": "a/b"}, "is not a topic"),
            ({"dead_letter_topic": 7}, "is not the name of a topic"),
            ({"max_deliveries": 40_000}, "40000 is more than 30000"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                await broker.admin("subscriptions.update", **NAMES, policy=policy)
        long = {"topic": "x", "subscription": "s" * 199}
        with pytest.raises(InvalidRequest, match="set dead_letter_topic for the"):
            await broker.admin("subscriptions.create", **long, policy=TWICE)
        assert await dead_letters(broker) == []
        with pytest.raises(NotFound):
            await dead_letters(broker, subscription="none")


@pytest.mark.parametrize("seed", range(8))
async def test_each_of_many_dead_messages_has_one_dead_letter_after_crashes(
    mock_clock: trio.testing.MockClock, seed: int
) -> None:
    """V1: thousands of messages fail at once, and the broker is killed between any two steps."""
    await fail_messages_across_crashes(SqliteEngine.in_memory(), 3_000, random.Random(seed))


async def test_each_dead_message_has_one_dead_letter_on_every_engine(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """V1."""
    await fail_messages_across_crashes(engine, 3_000, random.Random(5))


async def fail_messages_across_crashes(engine: Engine, count: int, rng: random.Random) -> None:
    """Fail ``count`` messages for the last time, and crash the broker repeatedly meanwhile."""
    config = BrokerConfig(ack_wait_ms=10_000, seed=0, limits=BrokerLimits(deliver_messages=256))
    async with testing.start(config=config, engine=engine) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
            await (await broker.producer("x")).send_many([b"%d" % n for n in range(count)])
        for _ in range(4):
            async with world.connect() as broker, broker.consumer("x", "s", permits=count) as inbox:
                await inbox.nack([m.id for m in await arrived(inbox)], timedelta(0))
                for _ in range(rng.randrange(2, 24)):
                    await trio.lowlevel.checkpoint()
                await world.crash()
            await world.restart()
        async with world.connect() as broker:
            async with broker.consumer("x", "s", permits=count) as inbox:
                await inbox.nack([m.id for m in await arrived(inbox)], timedelta(0))
                await settled(world)
                assert await arrived(inbox) == []
            copies: list[bytes] = []
            while rows := await dead_letters(broker):
                copies += [row["payload"] for row in rows]
                offsets = [row["offset"] for row in rows]
                purged = await broker.admin("dlq.purge", **NAMES, offsets=offsets)
                assert purged == {"purged": len(rows)}
            assert sorted(copies, key=int) == [b"%d" % n for n in range(count)]


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_rescheduled_dead_letter_counts_once_and_cancelled_one_not_at_all(
    checkpoint: bool, mock_clock: trio.testing.MockClock
) -> None:
    """V1, B1: dead letters that were not cancelled are listed and redriven once each."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await (await broker.producer("x")).send_many([b"now", b"later", b"cancelled", b"still"])
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)])
            await settled(world)
            offsets = {row["payload"]: row["offset"] for row in await dead_letters(broker)}
            await broker.run_now(offsets[b"now"], topic=DLQ)
            await broker.reschedule(offsets[b"later"], topic=DLQ, delay="1h")
            await broker.cancel(offsets[b"cancelled"], topic=DLQ)
            if checkpoint:
                await world.checkpoint()
            left = [b"later", b"now", b"still"]
            assert sorted(row["payload"] for row in await dead_letters(broker)) == left
            with pytest.raises(NotFound):
                await broker.admin("dlq.show", **NAMES, offset=offsets[b"cancelled"])
            dead_letter = await broker.admin("dlq.show", **NAMES, offset=offsets[b"later"])
            assert dead_letter["payload"] == b"later"
            listed = [row for row in await dead_letters(broker) if row["payload"] == b"later"]
            for row in (dead_letter, *listed):
                assert row["due_at_ms"] - row["died_at_ms"] >= 3_600_000
                assert row["original_due_at_ms"] <= row["died_at_ms"]
                assert "arrived_at_ms" not in row
            assert await broker.admin("dlq.redrive", **NAMES) == {"redriven": 3}
            await settled(world)
            again = await arrived(inbox)
            assert sorted(m.payload for m in again) == left
            await inbox.ack([m.id for m in again], durable=True)
            assert await dead_letters(broker) == []
            await world.clock.advance(hours=2)
            assert await dead_letters(broker) == []


@pytest.mark.parametrize("verb", ["redrive", "purge", "count", "list"])
async def test_dead_letter_rescheduled_during_a_scan_is_found_once(
    mock_clock: trio.testing.MockClock, verb: str
) -> None:
    """V1: it exists throughout, at its old or its new due time."""
    held = Held()
    async with testing.start(run=held, config=uncached(CALM)) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        producer = await broker.producer("x")
        await producer.send_many([b"0", b"1", b"2"])
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack([message.id for message in await arrived(inbox)])
            await settled(world)
        await broker.reschedule([1], delay="1h", topic=DLQ)
        await world.checkpoint()
        answers = []

        async def ask() -> None:
            answers.append(await broker.admin(f"dlq.{verb}", **NAMES))

        async with trio.open_nursery() as nursery:
            with held.hold(ORDER):
                nursery.start_soon(ask)
                await held.reached()
                await broker.reschedule([0], delay="2h", topic=DLQ)
                await broker.run_now([1], topic=DLQ)
        (answer,) = answers
        found = len(answer) if verb == "list" else next(iter(answer.values()))
        assert found == 3


@pytest.mark.parametrize("verb", ["redrive", "purge"])
@pytest.mark.parametrize("meanwhile", ["topics.delete", "subscriptions.delete", "seek"])
async def test_redrive_and_purge_stop_when_their_subscription_is_deleted_or_sought(
    mock_clock: trio.testing.MockClock, verb: str, meanwhile: str
) -> None:
    """V1, Q7: a change between two steps ends no dead letter of a new subscription."""
    held = Held()
    async with testing.start(run=held, config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        producer = await broker.producer("x")
        await producer.send_many([b"m"] * 3_000)
        async with broker.consumer("x", "s", permits=3_000) as inbox:
            await inbox.nack([message.id for message in await arrived(inbox)])
            await settled(world)
        await world.checkpoint()
        names = {"topic": DLQ, "subscription": DEAD_LETTERS_SUBSCRIPTION}
        answers: list[dict[str, int]] = []

        async def ask() -> None:
            answers.append(await broker.admin(f"dlq.{verb}", **NAMES))

        async def change() -> None:
            if meanwhile == "seek":
                await broker.admin("subscriptions.seek", **names, position="earliest")
            elif meanwhile == "topics.delete":
                await broker.admin("topics.delete", topic=DLQ)
            else:
                await broker.admin("subscriptions.delete", **names)

        async with trio.open_nursery() as nursery:
            with held.hold(COMMIT):
                nursery.start_soon(ask)
                await held.reached()
                nursery.start_soon(change)
                await trio.testing.wait_all_tasks_blocked()
        (ended,) = answers[0].values()
        assert 0 < ended < 3_000
        if meanwhile == "seek":
            assert await broker.admin("dlq.count", **NAMES) == {"dead_letters": 3_000, "next": None}


async def test_dead_letters_neither_expire_nor_are_dropped(
    mock_clock: trio.testing.MockClock,
) -> None:
    """P10: time-to-live and quotas do not apply to dead letters."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        limits = {"ttl_ms": "1h", "quota_messages": 2, "quota_action": "drop_oldest"}
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        producer = await broker.producer("x")
        async with broker.consumer("x", "s") as inbox:
            await producer.send_many([b"m"] * 5)
            await inbox.nack([m.id for m in await arrived(inbox)])
            await settled(world)
        totals = {"total_quota_messages": 2}
        await broker.admin("namespaces.update", namespace="public/default", policy=limits | totals)
        await broker.admin("subscriptions.create", topic=DLQ, subscription="mine")
        await (await broker.producer(DLQ)).send(b"of another kind")
        await world.clock.advance(hours=2)
        assert len(await dead_letters(broker)) == 5
        rows = await broker.admin("subscriptions.list", topic=DLQ)
        figures = {row["subscription"]: (row["expired"], row["dropped"]) for row in rows}
        assert figures == {"dead-letters": (0, 0), "mine": (1, 0)}
        refusing = {"quota_action": "refuse", "total_quota_messages": 2}
        await broker.admin("namespaces.update", namespace="public/default", policy=refusing)
        await producer.send(b"is not refused for dead letters")


async def test_dead_letter_dead_lettered_again_is_redriven_as_the_same_dead_letter(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: from the second dead-letter topic to the first, and from there to the original topic."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        once = {"max_deliveries": 1}
        again = {"topic": DLQ, "subscription": "worker"}
        await broker.admin("subscriptions.create", **NAMES, policy=once)
        await broker.admin("subscriptions.create", **again, policy=once)
        await (await broker.producer("x")).send(b"bad", properties={"mine": 1})
        for names in (NAMES, again):
            async with broker.consumer(names["topic"], names["subscription"]) as inbox:
                (message,) = await arrived(inbox)
                await message.nack()
            await settled(world)
        (first,) = await dead_letters(broker)
        (second,) = await dead_letters(broker, **again)
        assert (second["original_topic"], second["original_offset"]) == (DLQ, first["offset"])
        await broker.admin("dlq.purge", **NAMES)
        assert await broker.admin("dlq.redrive", **again) == {"redriven": 1}
        await settled(world)
        (back,) = await dead_letters(broker)
        assert back | {"offset": 0, "due_at_ms": 0} == first | {"offset": 0, "due_at_ms": 0}
        assert await broker.admin("dlq.redrive", **NAMES) == {"redriven": 1}
        await settled(world)
        async with broker.consumer("x", "s") as inbox:
            (message,) = await arrived(inbox)
            assert (message.value, message.properties) == (b"bad", {"mine": 1})


async def test_properties_that_are_not_utf_8_are_shown_and_redriven_unchanged(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V1: jobs and other clients pack properties themselves, and the broker does not check them."""
    odd = [b"\x81\xa1a\xa2\xff!", b"\x81\xa1\xfe\x07", msgpack.packb({b"\xff": 1})]
    read = [{"a": "\\xff!"}, {"\\xfe": 7}, {b"\xff": 1}]
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        producer = await broker.producer("x")
        await producer.send_batch(MessageBatch(Blobs.of([b"m"] * 3), properties=Blobs.of(odd)))
        async with broker.consumer("x", "s") as inbox:
            messages = await arrived(inbox)
            assert [message.properties for message in messages] == read
            await inbox.nack([message.id for message in messages])
        await settled(world)
        dead_letter = await broker.admin("dlq.show", **NAMES, offset=0)
        assert dead_letter["properties"]["a"] == "\\xff!"
        assert await broker.admin("dlq.redrive", **NAMES) == {"redriven": 3}
        await settled(world)
        async with broker.consumer("x", "s") as inbox:
            await world.clock.settle()
            batch = await inbox.next_batch()
            assert batch is not None
            assert batch.messages.properties is not None
            assert batch.messages.properties.to_list() == odd


@pytest.mark.parametrize("how", ["deleted", "moved on"])
async def test_dead_letters_of_a_deleted_or_changed_subscription_stay_reachable(
    how: str, mock_clock: trio.testing.MockClock
) -> None:
    """V1: deleting the subscription or changing its dead-letter topic loses no dead letter."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", **NAMES, policy={"max_deliveries": 1})
        await broker.admin("subscriptions.create", topic="x", subscription="other")
        await (await broker.producer("x")).send_many([b"a", b"b"])
        async with broker.consumer("x", "s") as inbox:
            await inbox.nack([m.id for m in await arrived(inbox)])
        await settled(world)
        if how == "deleted":
            await broker.admin("subscriptions.delete", **NAMES)
            with pytest.raises(NotFound):
                await dead_letters(broker)
        else:
            to = {"dead_letter_topic": "failed"}
            await broker.admin("subscriptions.update", **NAMES, policy=to)
            assert await dead_letters(broker) == []
        there = {"dead_letter_topic": DLQ}
        first, second = await dead_letters(broker, **there)
        dead_letter = await broker.admin("dlq.show", **NAMES, **there, offset=first["offset"])
        assert (dead_letter["payload"], dead_letter["subscription"]) == (b"a", "s")
        only = [first["offset"]]
        assert await broker.admin("dlq.redrive", **NAMES, **there, offsets=only) == {"redriven": 1}
        assert await dead_letters(broker, **there) == [second]
        assert await broker.admin("dlq.purge", **NAMES, **there) == {"purged": 1}
        await settled(world)
        async with broker.consumer("x", "other") as inbox:
            assert [m.value for m in await arrived(inbox)] == [b"a", b"b", b"a"]
        with pytest.raises(NotFound):
            await dead_letters(broker, dead_letter_topic="nowhere")
