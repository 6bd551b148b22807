"""A client whose addresses belong to different databases: it uses only the first that it met."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

import escapement
from escapement import testing
from escapement.client.connect import Connecting
from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.lines import Lines
from escapement.client.connection.link import Stream
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.errors import Disconnected, OtherDatabase

SETTINGS = Settings(heartbeat_s=None, request_timeout_s=20, close_timeout_s=0)


class Net:
    """Two brokers, each with its own database, and the addresses that lead to them."""

    def __init__(self, first: testing.World, other: testing.World) -> None:
        self.first, self.other = first, other
        self.leads_to = {"a": first, "b": other}

    async def dial(self, address: Address) -> Stream:
        world = self.leads_to.get(address.host)
        if world is None:
            raise Disconnected("nothing listens")
        return await world._open_stream()

    def connect(self) -> Connecting:
        addresses = Addresses.parse("escapement://a,b")
        return Connecting(Lines(self.dial, addresses, "", SETTINGS, TokenSource(None, None)))


@asynccontextmanager
async def net() -> AsyncIterator[Net]:
    async with testing.start() as first, testing.start() as other:
        yield Net(first, other)


async def topics_of(world: testing.World) -> list[str]:
    async with world.connect() as client:
        found: list[str] = (await client.admin("topics.list"))["topics"]
        return found


async def test_producer_waits_for_its_own_database(
    mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B8: while the broker is down, nothing is stored at the broker of another database."""
    async with net() as found, found.connect() as client:
        producer = await client.producer("t", send_timeout=(1, "h"))
        await producer.send(b"0")
        await found.first.crash()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.send, b"1")
            await found.first.clock.advance(seconds=10)
            await found.first.restart()
            await found.first.clock.advance(seconds=10)
        values = [one.value async for page in client.read("t") for one in page]
        assert values == [b"0", b"1"]
        logged = [one for one in caplog.records if "another database" in one.message]
        assert [one.message.partition(". ")[0] for one in logged] == [
            "The broker at escapement://b:7650 uses another database than the one at"
            " escapement://a:7650"
        ]
        assert await topics_of(found.other) == []


@pytest.mark.parametrize("misled", [False, True])
async def test_only_a_broker_of_another_database_answers(
    misled: bool, mock_clock: trio.testing.MockClock
) -> None:
    """B8: at once if no broker is left to wait for, and else after ``request_timeout_s``."""
    async with net() as found, found.connect() as client:
        producer = await client.producer("t")
        await found.first.crash()
        if misled:
            found.leads_to["a"] = found.other
        else:
            del found.leads_to["a"]
        begun_s = trio.current_time()
        errors: list[escapement.EscapementError] = []

        async def send() -> None:
            with pytest.raises(OtherDatabase, match=r"at escapement://.:7650 uses another") as it:
                await producer.send(b"lost")
            errors.append(it.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while not errors:
                await found.first.clock.advance(seconds=1)
        assert not errors[0].retryable
        assert (trio.current_time() - begun_s < 3) is misled
        with pytest.raises(OtherDatabase):
            await client.producer("u")
        assert await topics_of(found.other) == []
