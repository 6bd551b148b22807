"""Hints: a client, or the reader of the binary log, tells the broker of rows that were committed.

A whole broker on a virtual clock, with a real server. Without a hint, the broker finds a row only
when the time advances.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import trio

import escapement.sync
from escapement import InvalidRequest, sql
from escapement.testing import World
from support.messages.received_messages import in_log
from support.outbox.outboxes import serving
from support.processes.broker import broker_process
from support.tables.shops import Shop, comment, serving_tables, taken

MockClock = trio.testing.MockClock
SOON = {"ms": 20}


async def idle(world: World) -> None:
    """Let a broker poll until it has found nothing for so long that polls are rare."""
    for seconds in range(30):
        await world.clock.advance(seconds=seconds)


async def test_hint_makes_the_broker_find_a_row_before_its_next_poll(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V9."""
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            await idle(world)
            shop.insert(message="1")
            assert await taken(world, consumer, **SOON) == []
            broker.hint(f"{shop.address.database}.mails")
            (message,) = await taken(world, consumer, **SOON)
            assert message.row["message"] == 1


async def test_polls_follow_a_hint_that_comes_before_its_row(
    shop: Shop, mock_clock: MockClock
) -> None:
    topic = shop.create()
    async with serving_tables(shop) as world, world.connect() as broker:
        async with broker.consumer(topic, "table") as consumer:
            await idle(world)
            world.server.services.tables.hint(shop.address.database, "mails")
            assert await taken(world, consumer, **SOON) == []
            shop.insert(message="1")
            assert len(await taken(world, consumer, ms=100)) == 1


async def test_hints_for_tables_that_nobody_consumes_or_serves_do_nothing(
    shop: Shop, mock_clock: MockClock
) -> None:
    shop.create()
    async with serving_tables(shop) as world:
        await world.clock.advance(seconds=1)
        tables, database = world.server.services.tables, shop.address.database
        for where, name in ((database, "mails"), (database, "letters"), ("elsewhere", "mails")):
            tables.hint(where, name)
        shop.insert(message="1")
        await world.clock.advance(**SOON)


async def test_hint_makes_the_broker_move_a_row_of_an_outbox_at_once(
    shop: Shop, mock_clock: MockClock
) -> None:
    """V7."""
    shop.install()
    async with serving(shop) as world, world.connect() as broker:
        await (await broker.producer("t")).send(b"first")
        await idle(world)
        for payload in (b"slow", b"fast"):
            shop.send(payload)
            if payload == b"fast":
                broker.hint()
            await world.clock.advance(**SOON)
            if payload == b"slow":
                assert await in_log(broker, "t") == [b"first"]
                await idle(world)
        assert await in_log(broker, "t") == [b"first", b"slow", b"fast"]


async def test_wrong_hints_are_refused_or_logged(
    shop: Shop, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_tables(shop) as world, world.connect() as broker:
        with pytest.raises(InvalidRequest, match=r"Write it like shop\.my_message"):
            broker.hint("mails")
        with caplog.at_level(logging.WARNING):
            broker.hint(f"{shop.address.database}.letters")
            await world.clock.advance(seconds=1)
        assert "a hint was refused" in caplog.text
        assert "no message table letters" in caplog.text


def test_blocking_client_sends_hints_and_drops_them_when_it_is_closed(
    mysql_url: str, tmp_path: Path
) -> None:
    shop = Shop(mysql_url)
    shop.install()
    topic = shop.create(comment=comment(poller_interval=600))
    with broker_process(tmp_path / "data", None, "--tables", mysql_url, "--outbox", mysql_url) as b:
        with escapement.sync.connect(b.url) as broker:
            with broker.consumer(topic, "table") as rows, broker.consumer("t", "s") as messages:
                shop.insert(message="1")
                broker.hint(f"{shop.address.database}.mails")
                assert rows.receive(timeout_s=60).row["message"] == 1
                with shop.session() as cursor:
                    sql.schedule(cursor, "t", b"2")
                    cursor.connection.commit()
                broker.hint()
                assert messages.receive(timeout_s=60).payload == b"2"
        broker.hint()
        with pytest.raises(InvalidRequest):
            broker.hint("mails")
