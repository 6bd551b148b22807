"""The ack relay of a broker that another one has overtaken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from escapement import sql
from escapement.broker.broker import BrokerConfig
from escapement.storage.blocking import inline
from escapement.testing import World, arrived
from escapement.testing.clock import VirtualClock
from support.database.outages import Outage
from support.faults.stale_owner import LEASE_S, Owner
from support.outbox.outboxes import Application

MockClock = trio.testing.MockClock


@pytest.fixture
def application(mysql_url: str) -> Application:
    application = Application(mysql_url)
    application.install()
    return application


async def test_overtaken_broker_does_not_mark_rows_of_messages_that_it_does_not_know(
    application: Application, tmp_path: Path, mock_clock: MockClock
) -> None:
    """V7: it cannot reach the log, in which its successor has stored the message."""
    log, clock = Outage(), VirtualClock()
    config = replace(BrokerConfig(seed=0), outboxes=(application.address,))
    limits = replace(config.limits, lease_ms=1000 * LEASE_S, checkpoint_interval_s=1e9)
    config = replace(config, limits=limits)
    async with trio.open_nursery() as nursery:
        stale = Owner(nursery, clock, log.engine, tmp_path / "stale", config, inline)
        await stale.restart()
        async with stale.connect() as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
        log.unreachable()
        await clock.advance(seconds=LEASE_S + 1)
        unserved = replace(config, outboxes=())  # the earlier relay finds the row first
        successor = World(nursery, clock, log.database, tmp_path / "successor", unserved, inline)
        await successor.restart()
        async with successor.connect() as client, client.consumer("t", "s") as consumer:
            await (await client.producer("t")).send(b"1")
            (message,) = await arrived(consumer)
            with application.session() as cursor:
                sql.ack(cursor, message)
                cursor.connection.commit()
        await clock.advance(seconds=LEASE_S)
        learned = "SELECT learned_at IS NOT NULL FROM escapement_acks"
        assert application.run(learned) == ((0,),)
        assert not stale.was_overtaken
        log.over()
        await clock.advance(seconds=LEASE_S)
        assert stale.was_overtaken
        assert application.run(learned) == ((0,),)
        nursery.cancel_scope.cancel()
