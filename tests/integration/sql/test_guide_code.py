"""The code of the guides for each database driver, on a real server.

The programs of the guides are tested in tests/integration/cli/test_guides.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiomysql
import pytest
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
import trio

import escapement
import escapement.sync
from escapement.testing import arrived
from support.code_blocks import DOCS, blocks
from support.database.servers import MysqlServer
from support.outbox.drivers import (
    ASYNC_DRIVERS,
    django_connection,
    sqlalchemy_engine,
    sqlalchemy_engine_of_asyncio,
)
from support.outbox.outboxes import Application, serving
from support.processes.broker import broker_process
from support.tables.shops import Shop, comment

MockClock = trio.testing.MockClock


def code_of(guide: str, title: str) -> dict[str, Any]:
    """Run a block of a guide, and return its names."""
    (block,) = (one for one in blocks(DOCS / "guides" / f"{guide}.md") if one.title == title)
    names: dict[str, Any] = {}
    exec(block.compiled(), names)
    return names


def check_reminder(application: Application) -> None:
    """Check that there is one message, which is due in 14 days."""
    rows = application.run(
        "SELECT topic, payload, ROUND(TIMESTAMPDIFF(MINUTE, UTC_TIMESTAMP(3), due_at) / 60)"
        " FROM escapement_outbox"
    )
    assert rows == (("shop/eu/reminders", b"Your payment is due.", 14 * 24),)


def test_view_of_django_sends_a_message(application: Application) -> None:
    order = code_of("transactions", "Django only")["order"]
    with django_connection(application.address):
        order(None, 7)
    check_reminder(application)


def test_session_of_sqlalchemy_sends_a_message(application: Application) -> None:
    order = code_of("transactions", "SQLAlchemy only")["order"]
    with sqlalchemy_engine(application.address, "pymysql", autocommit=False) as engine:
        with sqlalchemy.orm.Session(engine) as session:
            order(session, 7)
    check_reminder(application)


def test_asynchronous_session_of_sqlalchemy_sends_a_message(application: Application) -> None:
    order = code_of("transactions", "SQLAlchemy with asyncio only")["order"]

    async def run() -> None:
        async with (
            sqlalchemy_engine_of_asyncio(application.address) as engine,
            sqlalchemy.ext.asyncio.AsyncSession(engine) as session,
        ):
            await order(session, 7)

    asyncio.run(run())
    check_reminder(application)


@pytest.mark.parametrize("driver", ["aiomysql", "asyncmy", "MySQL Connector"])
def test_asynchronous_cursor_sends_a_message(driver: str, application: Application) -> None:
    order = code_of("transactions", "asynchronous only")["order"]

    async def run() -> None:
        async with ASYNC_DRIVERS[driver](application.address) as session:
            await order(session.cursor, 7)
            await session.commit()

    asyncio.run(run())
    check_reminder(application)


async def test_consumer_with_django_processes_a_message_once(
    application: Application, mock_clock: MockClock
) -> None:
    process = code_of("processing-exactly-once", "Django only")["process"]
    application.send(b"1")
    async with serving(application) as world, world.connect() as broker:
        await world.clock.advance(seconds=10)
        async with broker.consumer("t", "s", position="earliest") as consumer:
            (message,) = await arrived(consumer)
            with django_connection(application.address):
                process(message)
                process(message)
        await world.clock.advance(seconds=1)
        assert world.server.stats()["outbox_acks_learned"] == 1


def test_consumer_with_aiomysql_processes_a_message_once(
    application: Application, tmp_path: Path
) -> None:
    process = code_of("processing-exactly-once", "asynchronous only")["process"]
    to = application.address

    async def run(url: str) -> None:
        connection = await aiomysql.connect(to.host, to.user, to.password, to.database, to.port)
        async with escapement.connect(url) as broker:
            await (await broker.producer("t")).send(b"1")
            async with broker.consumer("t", "s", position="earliest") as consumer:
                async for message in consumer:
                    await process(connection, message)
                    await process(connection, message)
                    break
        connection.close()

    with broker_process(tmp_path / "data") as broker:
        asyncio.run(run(broker.url))
    assert application.run("SELECT COUNT(*) FROM escapement_acks") == ((1,),)


@contextmanager
def shop_with_consumer(
    url: str, data: Path
) -> Iterator[tuple[Shop, escapement.sync.Broker, escapement.sync.Inbox]]:
    """Create the table of the guide in the database ``shop``, with a broker and a consumer."""
    shop = Shop(url)
    topic = shop.create(comment=comment(poller_interval=600))
    with broker_process(data, None, "--tables", url) as process:
        with escapement.sync.connect(process.url) as broker:
            with broker.consumer(topic, "table") as inbox:
                yield shop, broker, inbox


def test_hint_of_django_makes_a_row_come(mysql_to_break: MysqlServer, tmp_path: Path) -> None:
    send = code_of("message-tables", "hint with Django only")["send"]
    with database_shop(mysql_to_break) as url:
        with shop_with_consumer(url, tmp_path / "data") as (shop, broker, inbox):
            with django_connection(shop.address):
                send(broker, '{"a": 1}')
            message = inbox.receive(timeout_s=60)
            assert message is not None
            assert message.row["message"] == {"a": 1}


def test_hint_of_sqlalchemy_makes_a_row_come(mysql_to_break: MysqlServer, tmp_path: Path) -> None:
    sessions = code_of("message-tables", "hint with SQLAlchemy only")["sessions"]
    with database_shop(mysql_to_break) as url:
        with shop_with_consumer(url, tmp_path / "data") as (shop, broker, inbox):
            with sqlalchemy_engine(shop.address, "pymysql", autocommit=False) as engine:
                with sessions(engine, broker)() as session:
                    insert = "INSERT INTO mails (message) VALUES ('[1]')"
                    session.execute(sqlalchemy.text(insert))
                    session.commit()
            message = inbox.receive(timeout_s=60)
            assert message is not None
            assert message.row["message"] == [1]


@contextmanager
def database_shop(server: MysqlServer) -> Iterator[str]:
    """Create the database ``shop`` of the guides; provide its URL."""
    server.admin("CREATE DATABASE shop")
    try:
        yield server.url("shop")
    finally:
        server.admin("DROP DATABASE shop")
