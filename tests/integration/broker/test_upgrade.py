"""An upgrade: the next version of the program migrates the database of this one.

There is one version so far. The next one is this program with one more migration, which makes the
only kind of change that a migration may make: it adds columns and tables.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import trio.testing

import escapement
from escapement import testing
from escapement.errors import SchemaError
from escapement.storage import schema
from escapement.storage.engine.base import Engine
from escapement.storage.schema import Migration
from escapement.testing import arrived
from support.database.contents import tables

TOPIC = "t/n/x"
NAMES = {"topic": TOPIC, "subscription": "s"}


def next_version(engine: Engine) -> list[Migration]:
    """Return the migrations of the next version: it adds a column to each table, and a table."""
    known = schema.migrations()
    with closing(engine.connect()) as connection:
        names = [name for name in tables(engine, connection) if not name.startswith("log_1_")]
    statements = [
        f"ALTER TABLE {name} ADD COLUMN later BIGINT NOT NULL DEFAULT 7" for name in names
    ]
    statements.append("CREATE TABLE IF NOT EXISTS later (x BIGINT)")
    return [*known, Migration(len(known) + 1, "later", ";\n".join(statements))]


async def use_all(broker: escapement.Broker, name: str) -> list[bytes]:
    """Change rows of most tables. Return the messages that subscription ``s`` must still get."""
    topic = f"t/n/{name}"
    await broker.admin("topics.create", topic=topic)
    await broker.admin("subscriptions.create", topic=topic, subscription="s")
    await broker.schedules.create(name, topic, b"tick", every=timedelta(days=300))
    producer = await broker.producer(topic, name=f"producer-{name}")
    await producer.send(b"acknowledged", dedup="d", group="g")
    later = await producer.send(b"cancelled", delay=timedelta(hours=1))
    moved = await producer.send(b"moved", delay=timedelta(hours=1))
    await producer.send(b"failed")
    await broker.cancel(later)
    await broker.reschedule(moved, delay=timedelta(minutes=1))
    async with broker.consumer(topic, "s") as inbox:
        messages = await arrived(inbox)
        assert [message.value for message in messages] == [b"acknowledged", b"failed"]
        await inbox.ack([messages[0].id], durable=True)
        await inbox.nack([messages[1].id])
    return [b"failed", b"moved"]


async def test_older_broker_works_on_after_the_migration_until_the_next_version_takes_over(
    mock_clock: trio.testing.MockClock,
    engine: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """O9: a standby of the next version migrates first, and gets the lease later."""
    async with testing.start(engine=engine) as world:
        async with world.connect() as broker:
            wanted = {"before": await use_all(broker, "before")}
            await world.checkpoint()
            newer = next_version(engine)
            schema.migrate(engine, newer)  # by a standby, which does not get the lease
            wanted["meanwhile"] = await use_all(broker, "meanwhile")
            await broker.admin("namespaces.create", namespace="a/b")
            await world.checkpoint()
        await world.stop()
        with monkeypatch.context() as patch:
            patch.setattr(schema, "migrations", lambda: newer)
            world.index_directory = tmp_path / "standby"
            await world.restart()
            async with world.connect() as broker:
                await world.clock.advance(minutes=2)
                for name, messages in wanted.items():
                    async with broker.consumer(f"t/n/{name}", "s") as inbox:
                        got = await arrived(inbox)
                        assert sorted(message.value for message in got) == messages
                        await inbox.ack([message.id for message in got], durable=True)
                await use_all(broker, "after")
            await world.stop()
    with pytest.raises(SchemaError, match=r"\(later\), this program knows up to"):
        async with testing.start(engine=engine):
            raise AssertionError("the older version started")
