"""Cancels and reschedules in transactions of an application, in a whole broker on a virtual clock.

The application's database is on a real server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from escapement.broker.broker import BrokerConfig
from escapement.clock import moment
from escapement.sql import cancel, reschedule, schedule
from escapement.testing import World, arrived
from support.outbox.outboxes import Application, moved, serving

MockClock = trio.testing.MockClock


async def take_turns(world: World) -> None:
    """Let the relays move and carry out all rows of the outbox."""
    await world.clock.advance(seconds=5)


async def delivered(world: World, topic: str = "t", hours: int = 3) -> list[bytes]:
    """Return the payloads of the topic that are delivered in the next hours, in order."""
    found: list[bytes] = []

    async def consume() -> None:
        async for message in consumer:
            found.append(message.payload)
            await message.ack()

    async with (
        world.connect() as broker,
        broker.consumer(topic, "s", position="earliest") as consumer,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(consume)
        await world.clock.advance(hours=hours)
        nursery.cancel_scope.cancel()
    return found


@asynccontextmanager
async def shop(application: Application, **options: Any) -> AsyncIterator[World]:
    """Run a broker whose virtual clock begins with the time of the application's database."""
    start_ms = int(application.run("SELECT UNIX_TIMESTAMP() * 1000")[0][0])
    async with serving(application, start_ms=start_ms, **options) as world:
        yield world


NAMES = pytest.mark.parametrize("name", ["key", "dedup", "id", "offset"])


def named(name: str, offset: int) -> dict[str, str | int]:
    return {
        "key": {"key": f"k{offset}"},
        "dedup": {"dedup": f"d{offset}"},
        "id": {"id": f"public/default/t@{offset}"},
        "offset": {"id": offset},
    }[name]


@NAMES
async def test_committed_cancel_of_a_waiting_message_takes_effect(
    name: str, application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="1h")
        await take_turns(world)
        with application.session() as cursor:
            cancel(cursor, "t", **named(name, 1))  # type: ignore[arg-type]
            await take_turns(world)
            cursor.connection.commit()
        await take_turns(world)
        assert application.left == 0
        assert await delivered(world) == [b"0", b"2"]


@NAMES
async def test_rolled_back_cancel_has_no_effect(
    name: str, application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="1h")
        await take_turns(world)
        with application.session() as cursor:
            cancel(cursor, "t", **named(name, 1))  # type: ignore[arg-type]
            cursor.connection.rollback()
        await take_turns(world)
        assert await delivered(world) == [b"0", b"1", b"2"]


@NAMES
async def test_committed_reschedule_of_a_waiting_message_takes_effect(
    name: str, application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="90m")
        await take_turns(world)
        with application.session() as cursor:
            reschedule(cursor, "t", delay="150m", **named(name, 1))  # type: ignore[arg-type]
            cursor.connection.commit()
        await take_turns(world)
        assert await delivered(world, hours=2) == [b"0", b"2"]
        assert await delivered(world, hours=1) == [b"1"]


async def test_request_applies_to_rows_before_it_and_to_none_behind_it(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        with application.session() as cursor:
            for round in range(3):
                schedule(cursor, "t", b"other %d" % round, key="other")
                schedule(cursor, "t", b"%d" % round, key="k")
                schedule(cursor, "t", b"later %d" % round, key="k", delay="1h")
                cancel(cursor, "t", key="k")
            schedule(cursor, "t", b"last", key="k")
            cursor.connection.commit()
        await take_turns(world)
        assert await delivered(world) == [b"other 0", b"other 1", b"other 2", b"last"]


async def test_request_applies_to_earlier_transactions_and_to_no_later_one(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        for payload in (b"1", b"2", b"last"):
            with application.session() as cursor:
                cancel(cursor, "t", key="k")
                cursor.connection.commit()
            application.send(payload, key="k", delay="1h")
            if payload == b"1":
                await take_turns(world)
        await take_turns(world)
        assert await delivered(world) == [b"last"]


async def test_message_that_is_due_at_once_is_rescheduled_before_it_is_delivered(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        with application.session() as cursor:
            schedule(cursor, "t", b"moved", dedup="d")
            reschedule(cursor, "t", dedup="d", delay="90m")
            schedule(cursor, "t", b"early", key="k", delay="2h")
            reschedule(cursor, "t", key="k", at=moment(world.clock.now_ms() - 1))
            cursor.connection.commit()
        await take_turns(world)
        assert await delivered(world, hours=1) == [b"early"]
        assert await delivered(world, hours=1) == [b"moved"]


async def test_message_that_waits_in_the_inbox_is_cancelled(
    application: Application, mock_clock: MockClock
) -> None:
    config = BrokerConfig(auto_create_topics=False, seed=0)
    async with shop(application, config=config) as world, world.connect() as broker:
        for n in range(3):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}")
            await take_turns(world)
        with application.session() as cursor:
            cancel(cursor, "t", key="k0")
            cancel(cursor, "t", dedup="d2")
            cursor.connection.commit()
        await take_turns(world)
        assert application.left == 0
        await broker.admin("topics.create", topic="t")
        assert await delivered(world) == [b"1"]
        assert await broker.admin("inbox.list") == []


async def test_delivered_message_stays_with_the_subscription_that_got_it(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world, world.connect() as broker:
        await broker.admin("subscriptions.create", topic="t", subscription="s")
        async with broker.consumer("t", "early") as consumer:
            application.send(b"1", key="k")
            await take_turns(world)
            assert [one.payload for one in await arrived(consumer)] == [b"1"]
            with application.session() as cursor:
                cancel(cursor, "t", key="k")
                cursor.connection.commit()
            await take_turns(world)
        async with broker.consumer("t", "early") as consumer:
            await world.clock.advance(minutes=1)
            (again,) = await arrived(consumer)
            assert (again.payload, again.redelivered) == (b"1", True)
        assert await delivered(world) == []


async def test_requests_about_unknown_messages_change_nothing(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        application.send(b"1", key="k", dedup="d", delay="1h")
        await take_turns(world)
        with application.session() as cursor:
            cancel(cursor, "t", key="K")
            cancel(cursor, "t", dedup="D")
            cancel(cursor, "t", id=1)
            reschedule(cursor, "t", id=17, delay="9h")
            cursor.connection.commit()
        await take_turns(world)
        assert await delivered(world) == [b"1"]
        assert application.left == 0


async def test_requests_that_can_never_be_carried_out_are_refused_with_their_reasons(
    application: Application, mock_clock: MockClock
) -> None:
    columns = "topic, action, `key`, dedup_key, payload, due_at"
    rows: dict[tuple[Any, ...], str] = {
        ("t", "cancel", None, None, b"", None): "must name messages in one way",
        ("t", "cancel", "", None, b"", None): "must name messages in one way",
        ("t", "cancel", "k", "d", b"", None): "must name messages in one way",
        ("t", "cancel", "k", None, b"17", None): "must name messages in one way",
        ("t", "Cancel", "k", None, b"", None): "action must be 'cancel' or 'reschedule'",
        ("t", "cancel", None, None, b"-1", None): "is not a message id",
        ("t", "cancel", None, None, b"u@1", None): "belongs to another topic",
        ("t//", "cancel", "k", None, b"", None): "topic",
        ("t", "reschedule", "k", None, b"", "2200-01-01"): "past the maximum delay",
    }
    async with shop(application) as world:
        application.send(b"1", key="k", delay="1h")
        for row in rows:
            application.run(
                f"INSERT INTO escapement_outbox ({columns}) VALUES (%s, %s, %s, %s, %s, %s)", *row
            )
        await take_turns(world)
        reasons = [reason for _, reason in application.refusals]
        assert len(reasons) == len(rows)
        for reason, wanted in zip(reasons, rows.values(), strict=True):
            assert wanted in reason
        assert await delivered(world) == [b"1"]


async def test_requests_in_sql_of_any_language_take_effect(
    application: Application, mock_clock: MockClock
) -> None:
    insert = "INSERT INTO escapement_outbox (topic, action, {}payload) VALUES ('t', {})"
    async with shop(application) as world:
        for n in range(4):
            application.send(b"%d" % n, key=f"k{n}", dedup=f"d{n}", delay="90m")
        await take_turns(world)
        application.run(insert.format("`key`, ", "'cancel', 'k0', ''"))
        application.run(insert.format("dedup_key, ", "'cancel', 'd1', ''"))
        application.run(insert.format("", "'cancel', 'public/default/t@2'"))
        application.run(
            insert.format(
                "dedup_key, due_at, ",
                "'reschedule', 'd3', UTC_TIMESTAMP(3) + INTERVAL 30 MINUTE, ''",
            )
        )
        await take_turns(world)
        assert await delivered(world, hours=1) == [b"3"]
        assert await delivered(world, hours=1) == []


async def test_open_transaction_with_a_request_delays_no_other_row(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        application.send(b"kept", b"cancelled", key="k")
        with application.session() as open, application.session() as other:
            for cursor in (open, other):
                cursor.execute("SET innodb_lock_wait_timeout = 1")
            cancel(open, "t", key="k")
            assert await moved(world) == [b"kept", b"cancelled"]
            schedule(other, "t", b"other", key="k", delay="1h")
            cancel(other, "t", key="other")
            other.connection.commit()
            assert await moved(world) == [b"kept", b"cancelled", b"other"]
            open.connection.rollback()
        assert application.left == 0


async def test_request_waits_behind_a_row_that_another_session_has_locked(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        with application.session() as holder:
            application.send(b"a", key="k", dedup="d", delay="1h")
            application.send(b"b", dedup="e", delay="1h")
            holder.execute("SELECT * FROM escapement_outbox WHERE payload = 'a' FOR UPDATE")
            holder.connection.rollback()
            holder.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            holder.execute("SELECT * FROM escapement_outbox WHERE id = 1 FOR UPDATE")
            with application.session() as cursor:
                cancel(cursor, "t", dedup="d")
                cancel(cursor, "t", dedup="e")
                cursor.connection.commit()
            assert await moved(world) == [b"b"]
            assert application.left == 3
            holder.connection.rollback()
        await take_turns(world)
        assert application.left == 0
        assert await delivered(world) == []


async def test_long_search_delays_no_message(
    application: Application, mock_clock: MockClock
) -> None:
    async with shop(application) as world:
        application.send(b"1", key="k", delay="1h")
        application.send(b"2", key="other", delay="1h")
        await take_turns(world)
        amender = world.server.services.amender
        async with amender._searching, amender._searching:  # both searches take long
            for n in range(20):
                with application.session() as cursor:
                    cancel(cursor, "t", key="k")
                    schedule(cursor, "t", b"%d behind" % n, key="k", delay="1h")
                    schedule(cursor, "u", b"%d" % n, delay="1h")
                    reschedule(cursor, "t", key="other", delay="90m")
                    cursor.connection.commit()
                assert len(await moved(world, "u")) == n + 1
                assert (await moved(world))[-1] == b"%d behind" % n
        await take_turns(world)
        assert await delivered(world, hours=1) == [b"19 behind"]
        assert await delivered(world, hours=1) == [b"2"]
