"""A consumer that pulls has only the messages that it asked for (V6, B15)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import anyio
import pytest
import trio
from trio.testing import MockClock

import escapement
from escapement import sync, testing
from escapement.client.connection.link import Stream
from escapement.client.settings import Settings
from escapement.errors import InvalidRequest
from escapement.testing import World
from support.faults.held_calls import FETCH, Held
from support.processes.broker import broker_process


async def publish(broker: escapement.Broker, count: int) -> None:
    producer = await broker.producer("x")
    await producer.send_many([b"%d" % number for number in range(count)])


def offsets_of(batches: list[escapement.Batch]) -> list[int]:
    return [offset for batch in batches for offset in batch.offsets.tolist()]


async def test_pull_returns_at_most_its_count_and_other_consumers_get_the_rest(
    autojump_clock: MockClock,
) -> None:
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        async with (
            broker.consumer("x", "s", permits=0) as pulling,
            broker.consumer("x", "s", permits=1) as other,
        ):
            await publish(broker, 10)
            first = await other.receive(1)
            assert first is not None
            pulled = offsets_of(await pulling.pull(3, 1))
            assert 1 <= len(pulled) <= 3
            await first.ack()
            second = await other.receive(1)
            assert second is not None
            assert second.offset not in pulled


async def test_no_message_comes_between_two_pulls(autojump_clock: MockClock) -> None:
    """A pull that got nothing leaves no permits behind, and the next one goes on."""
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        async with broker.consumer("x", "s", permits=0) as pulling:
            assert await pulling.pull(100, 1) == []
            await publish(broker, 4)
            await anyio.sleep(60)
            async with broker.consumer("x", "s") as other:
                message = await other.receive(1)
                assert message is not None
                assert (message.attempt, message.redelivered) == (1, False)
            assert sorted(offsets_of(await pulling.pull(100, 1))) == [0, 1, 2, 3]


async def test_pull_waits_for_a_message_that_is_not_due(autojump_clock: MockClock) -> None:
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        producer = await broker.producer("x")
        await producer.send(b"later", delay=timedelta(seconds=30))
        async with broker.consumer("x", "s", permits=0) as pulling:
            assert await pulling.pull(1, 20) == []
            began_s = trio.current_time()
            (batch,) = await pulling.pull(1, 20)
            assert batch.values() == [b"later"]
            assert trio.current_time() - began_s <= 10.1


async def test_cancelled_pull_gives_its_messages_back_without_an_attempt(
    autojump_clock: MockClock,
) -> None:
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        async with broker.consumer("x", "s", permits=0) as pulling:
            with trio.CancelScope() as scope:
                scope.cancel()
                await pulling.pull(5, 1)
            await publish(broker, 5)
            with trio.move_on_after(0):
                await pulling.pull(5, 1)
            batches = await pulling.pull(5, 1)
            assert sorted(offsets_of(batches)) == [0, 1, 2, 3, 4]
            assert {attempt for batch in batches for attempt in batch.attempts.tolist()} == {1}


async def test_pull_after_a_lost_connection_goes_on(autojump_clock: MockClock) -> None:
    async with testing.start() as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        async with broker.consumer("x", "s", permits=0) as pulling, trio.open_nursery() as nursery:
            found: list[int] = []

            async def pull() -> None:
                found.extend(offsets_of(await pulling.pull(2, 60)))

            nursery.start_soon(pull)
            await trio.sleep(1)
            await world.stop()
            await world.restart()
            async with world.connect() as other:
                await publish(other, 1)
        assert found == [0]


async def restarted_with_messages_on_disk(world: World, count: int) -> None:
    async with world.connect() as broker:
        await broker.admin("subscriptions.create", topic="x", subscription="s")
        await publish(broker, count)
    await world.checkpoint()
    await world.stop()
    await world.restart()


async def test_messages_read_too_late_for_a_pull_go_to_other_consumers(
    autojump_clock: MockClock,
) -> None:
    """Their payloads are read while the pull ends. Their permits are void in the next pull."""
    held = Held()
    async with testing.start(run=held) as world:
        await restarted_with_messages_on_disk(world, 5)
        async with world.connect() as broker, broker.consumer("x", "s", permits=0) as pulling:
            with held.hold(FETCH):
                assert await pulling.pull(5, 1) == []
            assert len(offsets_of(await pulling.pull(2, 1))) == 2
            async with broker.consumer("x", "s") as other:
                message = await other.receive(1)
                assert message is not None
                assert message.attempt == 1


class SlowSender:
    """A stream of a client whose network takes long to send, if it is slow."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.delay_s = 0.0
        self.receive, self.aclose = stream.receive, stream.aclose

    async def send(self, item: bytes) -> None:
        await trio.sleep(self.delay_s)
        await self._stream.send(item)


async def test_pull_that_takes_longer_than_the_ack_wait_to_end_returns_no_late_messages(
    autojump_clock: MockClock,
) -> None:
    """B15: the broker has taken them back, and may have delivered them to another consumer."""
    async with testing.start() as world:
        streams: list[SlowSender] = []

        async def open_stream() -> SlowSender:
            streams.append(SlowSender(await world._open_stream()))
            return streams[-1]

        settings = Settings(heartbeat_s=None)
        async with (
            escapement.connect(
                stream_factory=open_stream, settings=settings, clock_s=world.clock.elapsed_s
            ) as broker,
            broker.consumer("x", "s", permits=0, ack_wait="10s") as pulling,
        ):
            await publish(broker, 1)
            streams[0].delay_s = 15
            assert await pulling.pull(1, 60) == []
            streams[0].delay_s = 0
            (batch,) = await pulling.pull(5, 60)
            assert batch.attempts.tolist() == [2]


def test_blocking_consumer_pulls(tmp_path: Path) -> None:
    with (
        broker_process(tmp_path / "data", None) as process,
        sync.connect(process.url) as broker,
    ):
        broker.admin("subscriptions.create", topic="x", subscription="s")
        with broker.producer("x") as producer:
            producer.send_many([b"a", b"b", b"c"])
        with broker.consumer("x", "s", permits=0) as inbox:
            pulled = [message for batch in inbox.pull(2, 10) for message in batch]
            assert len(pulled) == 2
            pulled[0].ack()
            assert len(inbox.pull(2, 0.01)) == 1


async def test_pull_needs_a_consumer_without_permits(autojump_clock: MockClock) -> None:
    async with testing.start() as world, world.connect() as broker:
        async with broker.consumer("x", "s") as inbox:
            with pytest.raises(InvalidRequest, match="permits=0"):
                await inbox.pull(1)
        async with broker.consumer("x", "s", permits=0) as inbox:
            with pytest.raises(InvalidRequest, match="call pull"):
                await inbox.receive(1)
            with pytest.raises(InvalidRequest, match="count must be"):
                await inbox.pull(0)
