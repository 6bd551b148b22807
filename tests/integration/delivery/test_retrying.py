"""Extending and releasing messages, attempts, and retries next to fresh messages."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.testing import World, arrived
from support.faults.held_calls import FETCH, Held, uncached

CALM = BrokerConfig(ack_wait_ms=10_000, seed=0)
KINDS = ["shared", "exclusive"]


async def attempts(world: World, inbox: escapement.Inbox, seconds: float) -> list[int]:
    """Wait some seconds. Return the attempts of the messages that have arrived."""
    await world.clock.advance(ms=round(1000 * seconds))
    return [message.attempt for message in await arrived(inbox)]


@pytest.mark.parametrize("kind", KINDS)
async def test_extend_postpones_the_ack_timeout(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V4: only of in-flight messages, and never to an earlier time."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        wait = timedelta(seconds=10)
        async with broker.consumer("x", "s", kind=kind, ack_wait=wait) as inbox:
            await producer.send_many([b"a", b"b", b"c"])
            a, b, c = await arrived(inbox)
            await world.clock.advance(seconds=6)
            assert await a.extend(timedelta(seconds=10))
            assert await b.extend("1s")
            assert await attempts(world, inbox, 3.9) == []
            await world.clock.advance(ms=110)
            again = await arrived(inbox)
            assert [m.value for m in again] == [b"b", b"c"]
            assert await inbox.extend([a.id, b.id, c.id, 17], wait) == 3
            async with broker.consumer("x", "other") as other:
                assert await other.extend([0, 1, 2], "1h") == 0
            assert await attempts(world, inbox, 9.9) == []
            await inbox.ack([m.id for m in (a, b, c)], durable=True)
            assert await a.extend(wait) is False
            assert await attempts(world, inbox, 1000) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_released_message_counts_no_attempt_and_is_marked_redelivered(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V4: the mark survives a crash, a checkpoint and a clean restart."""
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            async with broker.consumer("x", "s", kind=kind) as inbox:
                await producer.send(b"a")
                (message,) = await arrived(inbox)
                await message.release(timedelta(seconds=3))
                assert await attempts(world, inbox, 2) == []
                await world.clock.advance(seconds=1)
                (message,) = await arrived(inbox)
                assert (message.attempt, message.redelivered) == (1, True)
                await message.nack(timedelta(0))
                assert await attempts(world, inbox, 0) == [2]
                await inbox.release([0], timedelta(seconds=30))
                await world.clock.settle()
            await world.checkpoint()
            await world.crash()
        await world.restart()
        for way in (world.crash, world.stop):
            async with world.connect() as broker, broker.consumer("x", "s", kind=kind) as inbox:
                assert await attempts(world, inbox, 29) == []
                await world.clock.advance(seconds=1)
                (message,) = await arrived(inbox)
                assert (message.attempt, message.redelivered) == (2, True)
                await message.release(timedelta(seconds=30))
                await world.clock.settle()
                await way()
            await world.restart()


async def test_messages_left_in_an_inbox_count_no_attempt(
    mock_clock: trio.testing.MockClock,
) -> None:
    """V4: a leaving consumer releases the messages that it has not received."""
    async with testing.start(config=CALM) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", permits=5) as inbox:
            await producer.send_many([b"%d" % n for n in range(5)])
            await anext(inbox)
            await anext(inbox)
        async with broker.consumer("x", "s") as inbox:
            messages = await arrived(inbox)
            assert [(m.offset, m.attempt, m.redelivered) for m in messages] == [
                (0, 2, True), (1, 2, True), (2, 1, True), (3, 1, True), (4, 1, True),
            ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_messages_sent_to_a_leaving_consumer_count_no_attempt(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V4: a released message has been sent to the leaving consumer again, or is about to be."""
    held = Held()
    async with testing.start(run=held, config=uncached(CALM)) as world, world.connect() as broker:
        producer = await broker.producer("x")
        async with broker.consumer("x", "s", kind=kind, permits=1) as inbox:
            await producer.send(b"a")
            message = await anext(inbox)
            await message.release()
        for slow in (False, True):
            await world.checkpoint()
            async with AsyncExitStack() as stack:
                if slow and kind == "shared":
                    stack.enter_context(held.hold(FETCH))
                async with broker.consumer("x", "s", kind=kind) as inbox:
                    if slow and kind == "shared":
                        await held.reached()
            await world.clock.settle()
        async with broker.consumer("x", "s", kind=kind) as inbox:
            (message,) = await arrived(inbox)
            assert (message.attempt, message.redelivered) == (1, True)


@pytest.mark.parametrize("kind", KINDS)
async def test_attempts_survive_checkpoints_and_crashes(
    kind: str, mock_clock: trio.testing.MockClock
) -> None:
    """V4, Q6: checkpoints write the changes, and at times the whole table again."""
    rng = random.Random(7)
    counted = dict.fromkeys(range(60), 0)
    rewritten = False
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic="x", subscription="s", kind=kind)
            await (await broker.producer("x")).send_many([b"%d" % n for n in counted])
        for _ in range(2):
            for _ in range(35):
                async with world.connect() as broker:
                    wait = timedelta(days=1)
                    async with broker.consumer("x", "s", kind=kind, ack_wait=wait) as inbox:
                        await world.clock.advance(seconds=3)
                        messages = await arrived(inbox)
                        for message in messages:
                            assert message.attempt == counted[message.offset] + 1
                            counted[message.offset] += 1
                        for message in messages:
                            if rng.random() < 0.01:
                                del counted[message.offset]
                                await message.ack(durable=True)
                            elif rng.random() < 0.7:
                                await message.nack(timedelta(seconds=rng.randrange(1, 9)))
                await world.clock.settle()
                await world.checkpoint()
                (kept,) = world.server.services.checkpointer.unwritten.parts.values()
                rewritten = rewritten or kept.parts < kept.next_part
            await world.crash()
            await world.restart()
        assert rewritten
        assert 0 < len(counted) < 60


async def test_retries_due_together_do_not_hold_up_fresh_messages(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q6: also after a restart with all retries overdue. All retries are delivered in the end."""
    chronic, fresh = range(1000), range(1000, 1060)
    async with testing.start(config=CALM) as world:
        async with world.connect() as broker:
            await broker.admin("subscriptions.create", topic="x", subscription="s")
            producer = await broker.producer("x")
            await producer.send_many([b""] * len(chronic))
            async with broker.consumer("x", "s", permits=len(chronic)) as inbox:
                messages = await arrived(inbox)
                await inbox.nack([m.id for m in messages], timedelta(hours=1))
        for restart in (False, True):
            if restart:
                await world.crash()
                await world.clock.advance(hours=1)
                await world.restart()
            async with world.connect() as broker:
                await world.clock.advance(hours=1)
                await (await broker.producer("x")).send_many([b""] * (len(fresh) // 2))
                seen: list[int] = []
                async with broker.consumer("x", "s", permits=8) as inbox:
                    while messages := await arrived(inbox):
                        seen += [message.offset for message in messages]
                        old = [message.id for message in messages if message.offset in chronic]
                        await inbox.nack(old, timedelta(hours=1))
                        await inbox.ack([m.id for m in messages if m.id not in old], durable=True)
                last = max(at for at, offset in enumerate(seen) if offset in fresh)
                assert last < len(fresh) // 2 * 4 / 3 + 8
                assert sorted(o for o in seen if o in chronic) == list(chronic)


async def test_fresh_messages_do_not_wait_until_old_ones_are_read_from_disk(
    mock_clock: trio.testing.MockClock,
) -> None:
    """Q6: meanwhile no further old messages are chosen, because they would time out unsent."""
    held = Held()
    config = uncached(CALM)
    async with testing.start(config=config, run=held) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        await producer.send_many([b"old"] * 6)
        async with broker.consumer("x", "s", permits=4) as inbox:
            for _ in range(6):
                await (await anext(inbox)).nack(timedelta(minutes=1))
            await world.clock.settle()
            await world.checkpoint()
            with held.hold(FETCH):
                await world.clock.advance(minutes=1)
                await held.reached()
                async with broker.consumer("x", "s", permits=4) as other:
                    await producer.send_many([b"fresh"] * 3)
                    assert [m.value for m in await arrived(other)] == [b"fresh"] * 3
                    (stats,) = await broker.admin("subscriptions.list", topic="x")
                    assert (stats["in_flight"], stats["ready"]) == (7, 2)
            assert [m.value for m in await arrived(inbox)] == [b"old"] * 4 + [b"fresh"] * 3 + [
                b"old"
            ] * 2
