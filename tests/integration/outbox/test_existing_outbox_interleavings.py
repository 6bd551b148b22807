"""The interleavings of the outbox relay, for tables that applications have already.

Rows of the first table are deleted when they are done. Rows of the second stay, with another value
in a column. Rows of the third stay too, and have ids that are texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.outbox.mapping import OutboxMapping
from escapement.storage.outbox.tables import RESET
from support.database.outages import Outage
from support.outbox import existing_tables as tables
from support.outbox.existing_tables import DELETED, KEPT, WAITING, mapped, unmapped
from support.outbox.faulty_relays import Faults, relay_of
from support.outbox.outboxes import Application, moved, serving

MockClock = trio.testing.MockClock

TEXT_IDS = replace(KEPT, header_columns=(("id", "id"),))


@pytest.fixture(params=[DELETED, KEPT, TEXT_IDS], ids=["deleted", "kept", "text"])
def events(request: pytest.FixtureRequest, application: Application) -> OutboxMapping:
    """Return the mapping of the table ``events``, which exists."""
    mapping: OutboxMapping = request.param
    id = "VARCHAR(36) DEFAULT (LPAD(UUID_SHORT(), 20, '0'))" if mapping == TEXT_IDS else None
    ddl = tables.EVENTS.replace("BIGINT NOT NULL AUTO_INCREMENT", f"{id} NOT NULL")
    application.run(ddl if id else tables.EVENTS)
    mapped(application, mapping)
    return mapping


def insert(application: Application, *bodies: str) -> None:
    """Insert rows in one transaction."""
    with application.session() as cursor:
        for body in bodies:
            cursor.execute("INSERT INTO events (k, body) VALUES ('k', %s)", (body,))
        cursor.connection.commit()


def done_breaks(faults: Faults) -> None:
    # Rows are done by number together, and by any other id one by one.
    faults.before |= {"DELETE": 1, "UPDATE JSON_TABLE": 1, 'UPDATE "events"': 1}


def commit_breaks(faults: Faults) -> None:
    faults.before["UPDATE escapement_outbox_identity SET batch"] = 1


def reply_is_lost(faults: Faults) -> None:
    faults.lost_replies = 1


@pytest.mark.parametrize("fault", [done_breaks, commit_breaks, reply_is_lost])
async def test_mapped_rows_are_moved_once_if_step_c_fails(
    fault: Callable[[Faults], None],
    events: OutboxMapping,
    application: Application,
    mock_clock: MockClock,
) -> None:
    log = SqliteEngine.in_memory()
    faults = Faults(application)
    async with serving(engine=log) as world, trio.open_nursery() as nursery:
        relay = relay_of(world, faults.engine, log, events)
        nursery.start_soon(relay.run)
        insert(application, "0")
        assert await moved(world) == [b"0"]
        fault(faults)
        insert(application, "1", "2")
        assert await moved(world) == [b"0", b"1", b"2"]
        insert(application, "3")
        assert await moved(world) == [b"0", b"1", b"2", b"3"]
        assert application.run(WAITING) == ((0,),)
        nursery.cancel_scope.cancel()
    relay.close()


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_mapped_rows_are_moved_once_if_the_outcome_of_step_b_is_unknown(
    takes_effect: bool, events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    outage = Outage()
    async with serving(application, engine=outage.engine) as world:
        insert(application, "0")
        assert await moved(world) == [b"0"]
        insert(application, "1")
        if takes_effect:
            outage.lose_reply(1)
        else:
            outage.unreachable()
        await world.clock.advance(seconds=1)
        outage.over()
        await world.clock.advance(seconds=60)
        insert(application, "2")
        assert await moved(world) == [b"0", b"1", b"2"]
        assert application.run(WAITING) == ((0,),)


@pytest.mark.parametrize("remapped", ["no", "same", "other"])
async def test_mapped_rows_of_a_crashed_relay_are_done_before_the_next_batch(
    remapped: str, events: OutboxMapping, application: Application, mock_clock: MockClock
) -> None:
    log = SqliteEngine.in_memory()
    faults = Faults(application)
    async with serving(engine=log) as world:
        async with trio.open_nursery() as nursery:
            relay = relay_of(world, faults.engine, log, events)
            done_breaks(faults)
            insert(application, "1")
            nursery.start_soon(relay.run)
            await world.clock.settle()  # it has failed once, and waits for its next attempt
            nursery.cancel_scope.cancel()
        assert application.run(WAITING) == ((1,),)
        if remapped != "no":
            unmapped(application, "events")
            if remapped == "other":
                events = replace(events, header_columns=(("key", "k"),))
            mapped(application, events)
        relay = relay_of(world, faults.engine, log, events)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.run)
            insert(application, "2")
            assert await moved(world) == [b"1", b"2"]
            nursery.cancel_scope.cancel()
        relay.close()
    assert application.run(WAITING) == ((0,),)


async def test_mapped_rows_that_wait_again_after_a_failover_are_moved_only_if_they_are_new(
    events: OutboxMapping,
    application: Application,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(application) as world:
        insert(application, "1", "2")
        ids = [row[0] for row in application.run("SELECT id FROM events ORDER BY id")]
        assert await moved(world) == [b"1", b"2"]
        await world.crash()
        # The application's database fails over to a replica that lacks the last transaction.
        application.run("UPDATE escapement_outbox_identity SET batch = 0 WHERE outbox = 'events'")
        application.run("DELETE FROM events")
        restore = "INSERT INTO events (id, k, body) VALUES (%s, 'k', %s)"
        application.run(restore, ids[0], "1")
        application.run(restore, ids[1], "new")
        await world.restart()
        assert await moved(world) == [b"1", b"2", b"new"]
        assert "1 rows have the ids of moved rows" in caplog.text
        assert application.run(WAITING) == ((0,),)


async def test_restored_mapped_table_is_not_served_until_it_is_reset(
    events: OutboxMapping,
    application: Application,
    mock_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(application) as world:
        for body in ("1", "2", "3"):
            insert(application, body)
            await moved(world)
        await world.crash()
        application.run("UPDATE escapement_outbox_identity SET batch = 1 WHERE outbox = 'events'")
        insert(application, "3 again")
        application.send(b"ours")
        await world.restart()
        assert await moved(world) == [b"1", b"2", b"3", b"ours"]
        assert "restored to an earlier time" in caplog.text
        assert application.run(WAITING) == ((1,),)
        application.run(RESET)
        await moved(world)  # the relay of ``escapement_outbox`` notices the reset
        assert await moved(world) == [b"1", b"2", b"3", b"ours", b"3 again"]
