"""The rights on the tables of an outbox that a broker and an application need."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import trio.testing

import escapement.sql
from escapement.cli.main import run
from escapement.testing import arrived
from support.database.accounts import account
from support.database.servers import SqlServer
from support.outbox.outboxes import Application, moved, serving

# The rights of docs/guides/mysql-in-production.md.
BROKER = (
    "SELECT, DELETE ON {}.escapement_outbox",
    "INSERT ON {}.escapement_outbox_refused",
    "SELECT, UPDATE ON {}.escapement_outbox_identity",
    "SELECT ON {}.escapement_outbox_mapping",
    "SELECT, UPDATE, DELETE ON {}.escapement_acks",
    "SELECT, DELETE ON {}.events",
)
APPLICATION = ("INSERT ON {}.escapement_outbox", "INSERT ON {}.escapement_acks")


async def test_rights_on_the_tables_named_are_enough(
    mock_clock: trio.testing.MockClock,
    application: Application,
    mysql_server: SqlServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """N7, V7: rows are moved, refused and mapped; messages are cancelled and acknowledged."""
    name = application.address.database
    application.run("CREATE TABLE events (id BIGINT PRIMARY KEY AUTO_INCREMENT, body TEXT)")
    add = ["outbox", "add", application.url, "events", "--topic", "e", "--payload-column", "body"]
    assert run([*add, "--yes"]) == 0
    with ExitStack() as stack:
        limited, sender = Application(application.url), Application(application.url)
        for user, grants in ((limited, BROKER), (sender, APPLICATION)):
            rights = [grant.format(name) for grant in grants]
            user.address = stack.enter_context(account(mysql_server, application.url, *rights))
        start_ms = int(application.run("SELECT UNIX_TIMESTAMP() * 1000")[0][0])
        async with serving(limited, start_ms=start_ms) as world, world.connect() as broker:
            sender.send(b"cancelled", key="k", delay="1h")
            sender.send(b"sent")
            sender.run(
                "INSERT INTO escapement_outbox (topic, payload) VALUES ('no//topic', 'refused')"
            )
            application.run("INSERT INTO events (body) VALUES ('event')")
            assert await moved(world) == [b"cancelled", b"sent"]
            assert await moved(world, "e") == [b"event"]
            assert [payload for payload, _ in application.refusals] == [b"refused"]
            assert application.left == 0
            async with broker.consumer("t", "s", position="earliest") as consumer:
                (message,) = await arrived(consumer)
                with sender.session() as cursor:
                    escapement.sql.ack(cursor, message)
                    escapement.sql.cancel(cursor, "t", key="k")
                    cursor.connection.commit()
                await world.clock.advance(seconds=10)
                await world.clock.advance(hours=2)
                assert await arrived(consumer) == []
            waiting = "SELECT COUNT(*) FROM escapement_acks WHERE learned_at IS NULL"
            assert application.run(waiting) == ((0,),)
    assert "denied" not in caplog.text
