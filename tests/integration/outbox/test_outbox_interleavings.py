"""The interleavings that the docstring of the outbox relay names, one after the other.

The relay under test has its own connection to the application's database, which loses replies and
breaks at the steps that a test chooses. It commits through the pipeline of a whole broker.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from escapement.errors import StorageUnavailable
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.storage.outbox.application import OutboxInApplication
from escapement.storage.outbox.tables import RESET
from support.database.outages import Outage
from support.outbox.faulty_relays import Faults, relay_of
from support.outbox.outboxes import Application, moved, serving

MockClock = trio.testing.MockClock


def delete_breaks(faults: Faults) -> None:
    faults.before["DELETE"] = 1


def commit_breaks(faults: Faults) -> None:
    faults.before["UPDATE escapement_outbox_identity SET batch"] = 1


def reply_is_lost(faults: Faults) -> None:
    faults.lost_replies = 1


@pytest.mark.parametrize("fault", [delete_breaks, commit_breaks, reply_is_lost])
async def test_rows_are_moved_once_if_step_c_fails(
    fault: Callable[[Faults], None], application: Application, mock_clock: MockClock
) -> None:
    log = SqliteEngine.in_memory()
    faults = Faults(application)
    async with serving(engine=log) as world, trio.open_nursery() as nursery:
        relay = relay_of(world, faults.engine, log)
        nursery.start_soon(relay.run)
        application.send(b"0")
        assert await moved(world) == [b"0"]
        fault(faults)
        application.send(b"1", b"2")
        assert await moved(world) == [b"0", b"1", b"2"]
        application.send(b"3")
        assert await moved(world) == [b"0", b"1", b"2", b"3"]
        assert application.left == 0
        nursery.cancel_scope.cancel()
    relay.close()


@pytest.mark.parametrize("takes_effect", [True, False])
async def test_rows_are_moved_once_if_the_outcome_of_step_b_is_unknown(
    takes_effect: bool, application: Application, mock_clock: MockClock
) -> None:
    outage = Outage()
    async with serving(application, engine=outage.engine) as world:
        application.send(b"0")
        assert await moved(world) == [b"0"]
        application.send(b"1")
        if takes_effect:
            outage.lose_reply(1)
        else:
            outage.unreachable()
        await world.clock.advance(seconds=1)
        outage.over()
        await world.clock.advance(seconds=60)
        application.send(b"2")
        assert await moved(world) == [b"0", b"1", b"2"]
        assert application.left == 0


async def test_rows_of_a_crashed_relay_are_deleted_before_the_next_batch(
    application: Application, mock_clock: MockClock
) -> None:
    log = SqliteEngine.in_memory()
    faults = Faults(application)
    async with serving(engine=log) as world:
        async with trio.open_nursery() as nursery:
            relay = relay_of(world, faults.engine, log)
            faults.before = {"DELETE": 1, "connect": 0}
            application.send(b"1")
            nursery.start_soon(relay.run)
            await world.clock.settle()  # it has failed once, and waits for its next attempt
            nursery.cancel_scope.cancel()
        assert application.left == 1
        relay = relay_of(world, faults.engine, log)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(relay.run)
            application.send(b"2")
            assert await moved(world) == [b"1", b"2"]
            nursery.cancel_scope.cancel()
        relay.close()
    assert application.left == 0


async def test_successor_ends_the_connection_of_a_hanging_broker(
    application: Application, mock_clock: MockClock
) -> None:
    application.send(b"1", b"2", key="k")
    log = SqliteEngine.in_memory()
    async with serving(application, engine=log) as world:
        assert await moved(world) == [b"1", b"2"]
        identity = bytes(application.run("SELECT log FROM escapement_outbox_identity")[0][0])
        await world.crash()
        application.send(b"3", b"4", key="k")
        hanging = OutboxInApplication(application.engine, identity, {})
        hanging.attach()
        rows, _ = hanging.take()
        assert len(rows) == 2
        await world.restart()
        application.send(b"5", key="k")
        assert await moved(world) == [b"1", b"2", b"3", b"4", b"5"]
        with pytest.raises(StorageUnavailable):
            hanging.finish(rows, [], 2)
        hanging.close()


async def test_outbox_of_another_log_is_not_served_until_it_is_reset(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(application) as world:
        application.send(b"1")
        assert await moved(world) == [b"1"]
    async with serving(application) as world:
        application.send(b"2")
        assert await moved(world) == []
        assert "belongs to the log" in caplog.text
        application.run(RESET)
        assert await moved(world) == [b"2"]


async def test_outbox_is_served_once_under_two_addresses(
    application: Application, mock_clock: MockClock
) -> None:
    alias = Application(application.url.replace("127.0.0.1", "localhost"))
    async with serving(application, alias) as world:
        application.send(b"1")
        assert await moved(world) == [b"1"]
        application.send(b"2")
        assert await moved(world) == [b"1", b"2"]
        (waiting,) = world.server.stats()["outboxes_waiting"]
        assert "serves the outbox already, at mysql://" in waiting


async def test_reset_of_an_outbox_that_is_served_moves_no_row_twice(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(application) as world:
        application.send(b"1")
        assert await moved(world) == [b"1"]
        application.run(RESET)
        application.send(b"2")
        await moved(world)  # the relay notices the reset, and attaches again later
        assert await moved(world) == [b"1", b"2"]
        assert "the outbox was reset" in caplog.text


async def test_restored_outbox_is_not_served_until_it_is_reset(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(application) as world:
        for payload in (b"1", b"2", b"3"):
            application.send(payload)
            await moved(world)
        await world.crash()
        application.run("UPDATE escapement_outbox_identity SET batch = 1")
        application.send(b"3 again")
        await world.restart()
        assert await moved(world) == [b"1", b"2", b"3"]
        assert "restored to an earlier time" in caplog.text
        assert application.left == 1
        application.run(RESET)
        assert await moved(world) == [b"1", b"2", b"3", b"3 again"]


async def test_new_row_with_the_id_of_a_moved_row_is_moved(
    application: Application, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    insert = "INSERT INTO escapement_outbox (id, topic, payload) VALUES (%s, 't', %s)"
    async with serving(application) as world:
        for id, payload in ((7, b"1"), (8, b"2")):
            application.run(insert, id, payload)
        assert await moved(world) == [b"1", b"2"]
        await world.crash()
        # The application's database fails over to a replica that lacks the last transactions.
        application.run("UPDATE escapement_outbox_identity SET batch = 0")
        application.run(insert, 7, b"1")
        application.run(insert, 8, b"new")
        await world.restart()
        assert await moved(world) == [b"1", b"2", b"new"]
        assert "1 rows have the ids of moved rows" in caplog.text
        assert application.left == 0
