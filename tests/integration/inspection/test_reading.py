"""Tests of reading a topic by offset, without a subscription, on the virtual clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest
import trio

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.storage.engine.base import Engine
from escapement.testing import arrived

CONFIG = BrokerConfig(seed=0)


async def everything(
    broker: escapement.Broker, start: int = 0, stop: int | None = None, page_messages: int = 10_000
) -> list[tuple[int, bytes]]:
    """Return the offsets and values of a range of the topic x."""
    found: list[tuple[int, bytes]] = []
    async for page in broker.read("x", start, stop, page_messages=page_messages):
        assert 0 < len(page) <= page_messages
        found += zip(page.offsets.tolist(), page.values(), strict=True)
    return found


async def test_a_range_of_offsets_is_read_in_order_and_repeatably(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """N1: also delayed and acknowledged messages, and across a restart."""
    async with testing.start(config=CONFIG, engine=engine) as world:
        async with world.connect() as broker:
            producer = await broker.producer("x")
            for first in range(0, 60, 7):
                await producer.send_many(
                    [b"%d" % n for n in range(first, min(first + 7, 60))],
                    delay=[timedelta(hours=n % 3) for n in range(first, min(first + 7, 60))],
                )
            whole = [(n, b"%d" % n) for n in range(60)]
            assert await everything(broker) == whole
            for start, stop, page_messages in [(0, 60, 1), (5, 44, 10), (13, 14, 3), (59, 99, 2)]:
                assert await everything(broker, start, stop, page_messages) == whole[start:stop]
            assert await everything(broker, 60) == []
            assert await everything(broker, 99) == []
            assert await everything(broker, 7, 7) == []
            async with broker.consumer("x", "s", position="earliest", permits=100) as inbox:
                await inbox.ack([m.id for m in await arrived(inbox)], durable=True)
            await world.checkpoint()
            assert await everything(broker, page_messages=9) == whole
            await world.crash()
        await world.restart()
        async with world.connect() as broker:
            assert await everything(broker, page_messages=13) == whole


async def test_page_has_columns_and_messages(mock_clock: trio.testing.MockClock) -> None:
    """N1, N2: publish time, due time, key and properties."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x", serializer=str)
        begun_ms = world.clock.now_ms()
        await producer.send("a", delay=(1, "h"), key="k", properties={"source": "till"})
        await world.clock.advance(minutes=1)
        await producer.send("b")
        (page,) = [page async for page in broker.read("x", serializer=str)]
        assert page.values() == ["a", "b"]
        assert page.offsets.dtype == page.due_ms.dtype == page.published_ms.dtype == np.int64
        assert page.published_ms.tolist() == [begun_ms, begun_ms + 60_000]
        assert page.due_ms.tolist() == [begun_ms + 3_600_000, begun_ms + 60_000]
        first, second = page
        assert str(first.id) == "public/default/x@0"
        assert (first.value, first.key, first.properties) == ("a", "k", {"source": "till"})
        assert (second.value, second.key, second.properties) == ("b", None, {})
        assert second.published_at == second.deliver_at
        assert page[-1].offset == 1
        assert repr(page[1]) == "<PublishedMessage public/default/x@1>"


async def test_reading_stops_at_the_end_that_the_log_had_at_the_start(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N1: without a stop, reading does not follow the producers."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send_many([b"x"] * 5)
        found = []
        async for page in broker.read("x", page_messages=2):
            found += page.offsets.tolist()
            await producer.send_many([b"y"] * 5)
        assert found == [0, 1, 2, 3, 4]


async def test_a_page_is_bounded_in_bytes(mock_clock: trio.testing.MockClock) -> None:
    """Invariant 9: a page has few large messages or many small ones."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        for _ in range(6):
            await producer.send(b"." * 400_000)
        await producer.send(b"." * 8_000_000)
        await producer.send_many([b"s"] * 200_000)
        sizes = []
        count = 0
        async for page in broker.read("x", page_messages=65_536):
            sizes.append(page.messages.size_bytes)
            count += len(page)
        assert count == 200_007
        assert max(sizes) < 8_600_000
        assert sizes[0] < 1_000_000


async def test_reading_continues_after_a_reconnect(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N1: the broker keeps no state for a reader."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x")
        await producer.send_many([b"%d" % n for n in range(10)])
        found = []
        async for page in broker.read("x", page_messages=4):
            found += page.offsets.tolist()
            await world.crash()
            await world.restart()
            await world.clock.advance(minutes=1)  # the client reconnects
        assert found == list(range(10))


async def test_invalid_ranges_are_refused(mock_clock: trio.testing.MockClock) -> None:
    """N1."""
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        with pytest.raises(escapement.NotFound, match="no topic"):
            await everything(broker)
        for start, stop, said in [
            (-1, None, "-1 is not a valid offset"),
            (5, 4, "not a range of offsets"),
            ("5", None, "not a message id"),
            ("y@5", None, "must be of one topic"),
        ]:
            with pytest.raises(escapement.InvalidRequest, match=said):
                broker.read("x", start, stop)
        with pytest.raises(escapement.InvalidRequest, match="page_messages must be"):
            broker.read("x", page_messages=0)


@dataclass(frozen=True)
class Sale:
    """A value with its own conversion to and from bytes, as generated classes have."""

    till: int
    cents: int

    def dumps(self) -> bytes:
        return self.till.to_bytes(2, "big") + self.cents.to_bytes(4, "big")

    @classmethod
    def loads(cls, data: bytes) -> Sale:
        return cls(int.from_bytes(data[:2], "big"), int.from_bytes(data[2:], "big"))


async def test_values_of_a_custom_serializer_keep_their_properties(
    mock_clock: trio.testing.MockClock,
) -> None:
    """N2: also in a batch."""
    pair, source = (Sale.dumps, Sale.loads), {"source_type": "till", "source_id": 7}
    async with testing.start(config=CONFIG) as world, world.connect() as broker:
        producer = await broker.producer("x", serializer=pair)
        async with broker.consumer("x", "s", serializer=pair) as inbox:
            await producer.send(Sale(7, 100), properties=source)
            await producer.send_many([Sale(7, 250), Sale(8, 1)], properties=[source, None])
            found = await arrived(inbox)
        assert [message.value for message in found] == [Sale(7, 100), Sale(7, 250), Sale(8, 1)]
        assert [message.properties for message in found] == [source, source, {}]
