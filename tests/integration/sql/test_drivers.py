"""The functions of ``escapement.sql`` with each database driver, on a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
import sqlalchemy.ext.asyncio
import trio

from escapement import AlreadyProcessed, InvalidRequest, Message, sql
from escapement.testing import World, arrived
from support.outbox.drivers import (
    ASYNC_DRIVERS,
    DRIVERS,
    AsyncSession,
    Session,
    sqlalchemy_engine_of_asyncio,
)
from support.outbox.outboxes import Application, serving
from support.tables.shops import Shop, serving_tables

MockClock = trio.testing.MockClock
# Text and bytes that a driver must escape, or could take for a placeholder.
TEXT: Final = '100 %, %s, %(n)s, it\'s "so", C:\\n, `é`, ünï, \U0001f600, ?, {}, ;'
BYTES: Final = bytes(range(256)) + TEXT.encode() + b"\xf0\x28\x8c\x28\\"
MODES: Final = ["", "ANSI,TRADITIONAL", "NO_BACKSLASH_ESCAPES"]
# Ids of rows of message tables, by the type of their column.
IDS: Final[dict[str, object]] = {
    "BIGINT UNSIGNED": (1 << 64) - 1,
    "BINARY(8)": b"\xff\\'\x00\x80\n%s",
    "VARCHAR(80)": TEXT,
    "DECIMAL(40,3)": Decimal("12345678901234567890123456789.125"),
    "DATETIME(6)": datetime(2026, 12, 24, 18, 0, 0, 1),
    "TIME(3)": timedelta(hours=100, milliseconds=5),
}
ROW: Final = "topic, action, `key`, payload, headers, dedup_key, priority"


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def session_of(
    driver: str, application: Application, *, autocommit: bool = False
) -> AbstractContextManager[Session]:
    return DRIVERS[driver](application.address, autocommit)


OPTIONS: Final[dict[str, Any]] = {
    "topic": "shop/eu/orders",
    "payload": BYTES,
    "key": TEXT,
    "properties": {TEXT: [TEXT, 1.5, None]},
    "priority": 7,
    "dedup": TEXT,
}


def schedule_with_all_options(session: Session, **time: Any) -> None:
    sql.schedule(session.cursor(), **OPTIONS, **time)


def check_row(application: Application) -> None:
    """Check the row of a message with ``OPTIONS``."""
    ((topic, action, key, payload, headers, dedup, priority),) = application.run(
        f"SELECT {ROW} FROM escapement_outbox"
    )
    assert (topic, action, key, dedup, priority) == ("shop/eu/orders", None, TEXT, TEXT, 7)
    assert payload == BYTES
    assert json.loads(headers) == {TEXT: [TEXT, 1.5, None]}


@pytest.mark.parametrize("mode", MODES)
def test_row_has_all_that_was_passed(driver: str, mode: str, application: Application) -> None:
    """V7: in every SQL mode of the application."""
    at = datetime(2040, 1, 2, 3, 4, 5, 678_000, UTC)
    with session_of(driver, application) as session:
        if mode:
            session.run(f"SET SESSION sql_mode = '{mode}'")
        schedule_with_all_options(session, at=at)
        assert application.left == 0
        session.commit()
    check_row(application)
    ((due,),) = application.run("SELECT due_at FROM escapement_outbox")
    assert due.replace(tzinfo=UTC) == at


def test_delay_counts_by_the_clock_of_the_database(driver: str, application: Application) -> None:
    with session_of(driver, application) as session:
        session.run("SET time_zone = '-07:00'")
        schedule_with_all_options(session, delay=timedelta(days=14, milliseconds=1))
        session.commit()
    check_row(application)
    left_s = "TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(3), due_at)"
    ((seconds,),) = application.run(f"SELECT {left_s} FROM escapement_outbox")
    assert 0 <= 14 * 86_400 - seconds < 600


def test_rolled_back_row_does_not_exist(driver: str, application: Application) -> None:
    with session_of(driver, application) as session:
        schedule_with_all_options(session)
        sql.cancel(session.cursor(), "t", key="k")
        session.rollback()
        assert application.left == 0
        schedule_with_all_options(session)
        session.commit()
    check_row(application)


def test_row_exists_at_once_if_the_session_commits_each_statement(
    driver: str, application: Application
) -> None:
    with session_of(driver, application, autocommit=True) as session:
        schedule_with_all_options(session)
        check_row(application)


@pytest.mark.parametrize("mode", MODES)
def test_requests_have_all_that_was_passed(
    driver: str, mode: str, application: Application
) -> None:
    at = datetime(2040, 1, 2, 3, 4, 5, 678_000, UTC)
    with session_of(driver, application) as session:
        if mode:
            session.run(f"SET SESSION sql_mode = '{mode}'")
        sql.cancel(session.cursor(), "t", key=TEXT)
        sql.cancel(session.cursor(), "t", id=17)
        sql.reschedule(session.cursor(), "t", dedup=TEXT, at=at)
        sql.reschedule(session.cursor(), "t", key="k", delay="14d")
        session.commit()
    topic = "public/default/t"
    assert application.run(f"SELECT {ROW} FROM escapement_outbox ORDER BY id") == (
        (topic, "cancel", TEXT, b"", None, None, 50),
        (topic, "cancel", None, b"17", None, None, 50),
        (topic, "reschedule", None, b"", None, TEXT, 50),
        (topic, "reschedule", "k", b"", None, None, 50),
    )
    found = application.run(
        "SELECT due_at, due_at > UTC_TIMESTAMP(3) + INTERVAL 13 DAY FROM escapement_outbox"
        " WHERE action = 'reschedule' ORDER BY id"
    )
    assert found[0][0].replace(tzinfo=UTC) == at
    assert found[1][1] == 1


@asynccontextmanager
async def delivered(application: Application) -> AsyncIterator[tuple[World, list[Message]]]:
    """Deliver two messages to a consumer."""
    application.send(b"1", BYTES)
    async with (
        serving(application) as world,
        world.connect() as broker,
    ):
        await world.clock.advance(seconds=10)
        async with broker.consumer("t", "s", position="earliest") as consumer:
            yield world, await arrived(consumer)


@pytest.mark.parametrize("mode", MODES)
async def test_message_is_acknowledged_once_and_exactly_if_the_transaction_commits(
    driver: str, mode: str, application: Application, mock_clock: MockClock
) -> None:
    """V7, V17: in every SQL mode of the application."""
    async with delivered(application) as (world, messages):
        assert [message.payload for message in messages] == [b"1", BYTES]
        with session_of(driver, application) as session:
            if mode:
                session.run(f"SET SESSION sql_mode = '{mode}'")
            sql.ack(session.cursor(), messages)
            session.rollback()
            sql.ack(session.cursor(), messages)
            session.commit()
            for again in (messages, messages[1]):
                with pytest.raises(AlreadyProcessed):
                    sql.ack(session.cursor(), again)
                # The transaction is still open, and may go on.
                sql.schedule(session.cursor(), "t", b"3")
                session.rollback()
            assert application.left == 0
        await world.clock.advance(seconds=1)
        assert world.server.stats()["outbox_acks_learned"] == 2


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES"])
@pytest.mark.parametrize(("type", "id"), IDS.items(), ids=IDS)
async def test_row_of_a_message_table_is_acknowledged_once(
    driver: str, mode: str, type: str, id: object, mysql_url: str, mock_clock: MockClock
) -> None:
    """V7, V17."""
    shop = Shop(mysql_url)
    topic = shop.create()
    shop.run(f"ALTER TABLE mails MODIFY id {type} NOT NULL")
    shop.insert(id=id)
    async with (
        serving_tables(shop) as world,
        world.connect() as broker,
        broker.consumer(topic, "table") as consumer,
    ):
        await world.clock.advance(seconds=1)
        (message,) = await arrived(consumer)
        with session_of(driver, shop) as session:
            if mode:
                session.run(f"SET SESSION sql_mode = '{mode}'")
            sql.ack(session.cursor(), message)
            session.rollback()
            assert shop.row(id, "time_acked") == (None,)
            sql.ack(session.cursor(), message)
            session.commit()
            assert shop.row(id, "time_acked") != (None,)
            with pytest.raises(AlreadyProcessed):
                sql.ack(session.cursor(), message)
            session.rollback()


async def test_failed_acknowledgement_of_rows_changes_none_of_them(
    driver: str, mysql_url: str, mock_clock: MockClock
) -> None:
    """V7, V17: an application that commits after the error loses no message."""
    shop = Shop(mysql_url)
    topics = [shop.create(name) for name in ("mails", "texts")]
    for _ in range(3):
        shop.insert()
    shop.insert("texts")
    async with serving_tables(shop) as world, world.connect() as broker:
        messages = []
        for topic in topics:
            async with broker.consumer(topic, "table") as consumer:
                await world.clock.advance(seconds=1)
                messages += await arrived(consumer)
        assert len(messages) == 4
    shop.run("UPDATE texts SET time_acked = 7, time_next = NULL")
    with session_of(driver, shop) as session:
        with pytest.raises(AlreadyProcessed, match=r"row 1 of table://.*/texts"):
            sql.ack(session.cursor(), messages)
        session.commit()
        assert shop.rows("time_acked") == ((None,),) * 3
        sql.ack(session.cursor(), messages[:3])
        session.commit()
        assert shop.rows("time_next IS NULL AND time_acked IS NOT NULL") == ((1,),) * 3


async def test_failed_acknowledgement_of_messages_notes_none_of_them(
    driver: str, application: Application, mock_clock: MockClock
) -> None:
    """V7, V17: an application that commits after the error loses no message."""
    async with delivered(application) as (_, messages):
        with session_of(driver, application) as session:
            for acked in messages:
                application.run("DELETE FROM escapement_acks")
                sql.ack(session.cursor(), acked)
                session.commit()
                with pytest.raises(AlreadyProcessed):
                    sql.ack(session.cursor(), messages)
                session.commit()
                ((offset,),) = application.run("SELECT message_offset FROM escapement_acks")
                assert offset == acked.offset


# -- asynchronous drivers ----------------------------------------------------------


@pytest.fixture(params=ASYNC_DRIVERS)
def async_driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def async_session_of(
    driver: str, application: Application, mode: str = ""
) -> AsyncIterator[AsyncSession]:
    async with ASYNC_DRIVERS[driver](application.address) as session:
        if mode:
            await session.execute(f"SET SESSION sql_mode = '{mode}'", ())
        yield session


@pytest.mark.parametrize("mode", MODES)
def test_statements_have_all_that_was_passed(
    async_driver: str, mode: str, application: Application
) -> None:
    """V7."""

    async def run() -> None:
        async with async_session_of(async_driver, application, mode) as session:
            await session.execute(*sql.insertion(**OPTIONS, delay="14d"))
            await session.rollback()
            assert application.left == 0
            await session.execute(*sql.insertion(**OPTIONS, delay="14d"))
            await session.commit()
            check_row(application)
            application.run("DELETE FROM escapement_outbox")
            await session.execute(*sql.cancellation("t", key=TEXT))
            await session.execute(*sql.rescheduling("t", dedup=TEXT, delay="14d"))
            await session.commit()

    asyncio.run(run())
    assert application.run(f"SELECT {ROW} FROM escapement_outbox ORDER BY id") == (
        ("public/default/t", "cancel", TEXT, b"", None, None, 50),
        ("public/default/t", "reschedule", None, b"", None, TEXT, 50),
    )


@pytest.mark.parametrize("mode", MODES)
async def test_statement_acknowledges_messages_once(
    async_driver: str, mode: str, application: Application, mock_clock: MockClock
) -> None:
    """V7, V17."""

    async def run(messages: list[Message]) -> None:
        async with async_session_of(async_driver, application, mode) as session:
            await session.execute(*sql.acknowledgement(messages))
            await session.rollback()
            await session.execute(*sql.acknowledgement(messages))
            await session.commit()
            with pytest.raises(Exception, match="1062"):
                await session.execute(*sql.acknowledgement(messages[1]))
            await session.rollback()

    async with delivered(application) as (world, messages):
        await trio.to_thread.run_sync(asyncio.run, run(messages))
        await world.clock.advance(seconds=1)
        assert world.server.stats()["outbox_acks_learned"] == 2


def test_asynchronous_cursor_is_refused_and_executes_nothing(
    async_driver: str, application: Application
) -> None:
    async def run() -> None:
        async with async_session_of(async_driver, application) as session:
            for call, name in (
                (lambda: sql.schedule(session.cursor, "t", b""), "insertion"),
                (lambda: sql.cancel(session.cursor, "t", key="k"), "cancellation"),
            ):
                with pytest.raises(InvalidRequest, match=name):
                    call()
            await session.commit()

    asyncio.run(run())
    assert application.left == 0


def test_asynchronous_session_of_sqlalchemy_runs_the_functions(application: Application) -> None:
    async def run() -> None:
        async with (
            sqlalchemy_engine_of_asyncio(application.address) as engine,
            sqlalchemy.ext.asyncio.AsyncSession(engine) as session,
        ):
            await session.run_sync(
                lambda session: sql.schedule(session.connection(), **OPTIONS, delay="14d")
            )
            assert application.left == 0
            await session.commit()

    asyncio.run(run())
    check_row(application)
