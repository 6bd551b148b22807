"""The page Brokers."""

from __future__ import annotations

import re
from contextlib import closing
from importlib.metadata import version

import trio.testing

from escapement import testing
from escapement.storage import members
from escapement.storage.engine.base import Engine
from escapement.storage.lease import Identity
from escapement.testing import arrived
from support.console.visitor import text_of, visiting


async def test_page_shows_the_version_of_each_broker(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B8, B14: during a rolling upgrade. A broker of an earlier version does not tell its own."""
    async with testing.start(engine=engine) as world, visiting(world) as visitor:
        with closing(engine.connect()) as connection:
            connection.execute(
                "INSERT INTO brokers (owner_id, incarnation, name, place, address, expires_at_ms,"
                " seen_ms, draining, connection_ids) VALUES ('id-1', 'i', 'old:7650', 'there',"
                f" 'old.example:7650', {engine.dialect.now_ms} + 3600000, 0, 0, '')"
            )
        text = await visitor.text("/brokers")
        assert "Warnings of escapement doctor are those of" in text
        assert "old.example:7650 unknown active" in text
        assert f" {version('escapement')} active" in text


async def test_page_shows_rates_and_the_growth_of_the_log(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14: from the second reading on."""
    async with (
        testing.start(engine=engine) as world,
        world.connect() as broker,
        visiting(world) as visitor,
    ):
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        text = await visitor.text("/brokers")
        assert "– published in a second – delivered in a second" in text
        assert "– growth of the log in a day" in text
        async with await broker.producer("t") as producer, broker.consumer("t", "s") as inbox:
            await producer.send_many([bytes(1_000)] * 20)
            assert len(await arrived(inbox)) == 20
            await world.clock.advance(seconds=10)
        text = await visitor.text("/brokers")
        assert "2.0 published in a second 2.0 delivered in a second" in text
        # 20 kB in ten seconds, and some bytes more for each message.
        growth = re.search(r"([0-9.]+) MiB growth of the log in a day", text)
        assert growth is not None, text
        assert 160 < float(growth[1]) < 250


async def test_broker_is_drained_and_a_bundle_is_moved(
    mock_clock: trio.testing.MockClock, engine: Engine
) -> None:
    """B14, B17: the page shows both, until they are taken back. The log says why."""
    async with (
        testing.start(engine=engine) as world,
        world.connect() as broker,
        visiting(world) as visitor,
    ):
        other = "other-00000000"
        identity = Identity(other, "other:7650", "other")
        members.register(engine, identity, 3_600_000, world.clock, "other.example:7650")

        async def does(action: str, **fields: str) -> str:
            fields = {"reason": f"to {action}", **fields}
            text = text_of(await visitor.send(f"/brokers/{action}", fields))
            (row,) = (await broker.admin("audit.list", count=1))["actions"]
            assert (row["verb"], row["reason"]) == (f"cluster.{action}", f"to {action}")
            return text

        shown = f"other.example:7650 {version('escapement')}"
        assert f"{shown} draining" in await does("drain", node=other)
        assert f"{shown} active" in await does("undrain", node=other)
        text = await does("move", bundle="0", node=other)
        assert "Bundle 0 moves to other-00000000." in text
        assert "1 other:7650" in text
        text = await does("move", bundle="0", node="")
        assert "Bundle 0 is not pinned any more." in text
        (bundle,) = (await broker.admin("cluster.status"))["bundles"]
        assert bundle["pinned_to"] is None
