"""The views for people who read the database with SQL say what the broker says."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql
import pytest
import trio.testing
from pymysql.cursors import DictCursor

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import BrokerLimits
from escapement.errors import AlreadyExists, NotFound
from escapement.storage import schema
from escapement.storage.catalog import views
from escapement.storage.catalog.rule import FOREVER_MS
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.sqlite import SqliteEngine
from escapement.testing import World, arrived
from support.code_blocks import DOCS, blocks
from support.database.servers import SqlServer
from support.seeds import seeds
from support.storage.forgetting_brokers import a_day_later

Row = dict[str, Any]

NAMESPACES = ("shop/eu", "shop/us")
TOPICS = tuple(f"{space}/{name}" for space in NAMESPACES for name in ("a", "b"))
CONFIG = BrokerConfig(
    ack_wait_ms=10**12, limits=BrokerLimits(max_delay_ms=10**12), table_parallelism=2, seed=0
)


def select(engine: Engine, sql: str) -> list[Row]:
    """Run a query with an ordinary client of the database, whose time zone is not UTC."""
    if isinstance(engine, SqliteEngine):
        with closing(sqlite3.connect(engine.location)) as file:
            file.row_factory = sqlite3.Row
            return [dict(row) for row in file.execute(sql)]
    assert isinstance(engine, MysqlEngine)
    with closing(wire(engine._address)) as server, server.cursor(DictCursor) as cursor:
        cursor.execute("SET time_zone = '+05:00'")
        cursor.execute(sql)
        return list(cursor.fetchall())


def wire(address: MysqlAddress) -> Any:
    return pymysql.connect(
        host=address.host,
        port=address.port,
        user=address.user,
        password=address.password,
        database=address.database,
        unix_socket=address.unix_socket or None,
    )


def moment(value: Any) -> int | None:
    """Return a time of a view in Unix milliseconds."""
    if value is None:
        return None
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return round(at.replace(tzinfo=UTC).timestamp() * 1000)


async def broker_says(broker: escapement.Broker) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows that the three views should have, by topic and subscription."""
    topics: list[Row] = []
    subscriptions: list[Row] = []
    pending: list[Row] = []
    for name in (await broker.admin("topics.list"))["topics"]:
        stats = await broker.admin("topics.stats", topic=name)
        here = {"namespace": name.rpartition("/")[0], "next_offset": stats["next_offset"]}
        topics.append(here | await broker.admin("topics.get", topic=name))
        for one in stats["subscriptions"]:
            of = {"topic": name, "subscription": one["subscription"]}
            subscriptions.append(await broker.admin("subscriptions.get", **of))
            counted = {key: one[key] for key in ("kind", "unacknowledged")}
            pending.append(of | counted | {"next_offset": stats["next_offset"]})
    return topics, subscriptions, pending


def check(engine: Engine, name: str, said: list[Row], key: tuple[str, ...]) -> None:
    """Compare a view with rows of the broker, which may lack some columns of the view."""
    found = {tuple(row[one] for one in key): row for row in select(engine, f"SELECT * FROM {name}")}
    assert found.keys() == {tuple(row[one] for one in key) for row in said}
    for row in said:
        seen = found[tuple(row[one] for one in key)]
        assert {one: seen[one] for one in row} == row
        for column, value in seen.items():
            if column.removesuffix("_ms") in seen and column.endswith(("_at_ms", "_until_ms")):
                none = not 0 < value < views._END_MS
                assert moment(seen[column.removesuffix("_ms")]) == (None if none else value)


async def check_all(engine: Engine, broker: escapement.Broker) -> None:
    """Compare the three views with what the broker says."""
    topics, subscriptions, pending = await broker_says(broker)
    check(engine, "escapement_topics", topics, ("topic",))
    check(engine, "escapement_subscriptions", subscriptions, ("topic", "subscription"))
    check(engine, "escapement_pending", pending, ("topic", "subscription"))


class Events:
    """Random operations of a client and of the broker's upkeep."""

    def __init__(self, seed: int, world: World, broker: escapement.Broker) -> None:
        self.rng = random.Random(seed)
        self.world = world
        self.broker = broker

    async def one(self) -> None:
        topic = self.rng.choice(TOPICS)
        name = self.rng.choice("st")
        often = [self.publish, self.take, self.create]
        others = [self.cancel, self.reschedule, self.seek, self.remove, self.policy]
        step = self.rng.choice([*often, *often, *others])
        try:
            await step(topic, name)
        except (NotFound, AlreadyExists):
            return

    async def publish(self, topic: str, name: str) -> None:
        delays = [self.rng.choice([None, timedelta(hours=self.rng.randint(1, 80))]) for _ in "1234"]
        async with await self.broker.producer(topic) as producer:
            await producer.send_many([b"x"] * 4, delay=delays)

    async def take(self, topic: str, name: str) -> None:
        of = {"topic": topic, "subscription": name}
        kind = (await self.broker.admin("subscriptions.get", **of))["kind"]
        async with self.broker.consumer(topic, name, kind=kind, permits=100) as inbox:
            got = await arrived(inbox)
            await inbox.ack([m.id for m in got if self.rng.random() < 0.6], durable=True)

    async def cancel(self, topic: str, name: str) -> None:
        await self.broker.cancel(self.offsets(topic), topic=topic)

    async def reschedule(self, topic: str, name: str) -> None:
        delay = timedelta(hours=self.rng.randint(1, 80))
        await self.broker.reschedule(self.offsets(topic), topic=topic, delay=delay)

    def offsets(self, topic: str) -> list[int]:
        active = self.world.server.registry.active
        end = next((one.next_offset for one in active.values() if one.name.full == topic), 0)
        return self.rng.sample(range(end), min(end, 3))

    async def create(self, topic: str, name: str) -> None:
        await self.broker.admin(
            "subscriptions.create",
            topic=topic,
            subscription=name,
            kind=self.rng.choice(["shared", "exclusive", "failover"]),
            position=self.rng.choice(["earliest", "latest"]),
        )

    async def seek(self, topic: str, name: str) -> None:
        position = self.rng.choice(["earliest", "latest"])
        await self.broker.admin(
            "subscriptions.seek", topic=topic, subscription=name, position=position
        )

    async def remove(self, topic: str, name: str) -> None:
        if self.rng.random() < 0.3:
            await self.broker.admin("topics.delete", topic=topic, force=True)
        else:
            of = {"topic": topic, "subscription": name}
            await self.broker.admin("subscriptions.delete", **of, force=True)

    async def policy(self, topic: str, name: str) -> None:
        until_ms = self.rng.choice([0, FOREVER_MS, self.world.clock.now_ms() - 7])
        common: Row = {"paused_until_ms": until_ms}
        mine = {
            "max_publish_rate": self.rng.choice([0, 1e8 + 0.5, 7e8]),
            "quota_action": "drop_oldest",
        }
        theirs: Row = {
            "expired_to_dead_letter": self.rng.random() < 0.5,
            "jitter": self.rng.choice([0, 0.25]),
            "dead_letter_topic": self.rng.choice(["", "shop/eu/dead"]),
            "max_deliveries": self.rng.randint(0, 9),
        }
        await self.broker.admin("topics.update", topic=topic, policy=common | mine)
        await self.broker.admin(
            "subscriptions.update", topic=topic, subscription=name, policy=common | theirs
        )
        await self.broker.admin("topics.update", topic=topic, policy={"paused_until_ms": None})


@pytest.mark.parametrize("seed", seeds(range(4)))
async def test_views_say_what_the_broker_says(
    mock_clock: trio.testing.MockClock, engine: Engine, seed: int
) -> None:
    """V15: after random operations, with generations of the log that come and go."""
    async with testing.start(config=CONFIG, engine=engine) as world, world.connect() as broker:
        for space in NAMESPACES:
            await broker.admin("namespaces.create", namespace=space)
            policy = {"retention_ms": "0s"}
            await broker.admin("namespaces.update", namespace=space, policy=policy)
        events = Events(seed, world, broker)
        for _ in range(6):
            for _ in range(12):
                await events.one()
            await world.checkpoint()
            await a_day_later(world)
            await world.checkpoint()
            await check_all(engine, broker)
        for topic in (await broker.admin("topics.list"))["topics"]:
            await broker.admin("topics.delete", topic=topic, force=True)
        await world.checkpoint()
        await a_day_later(world)
        await check_all(engine, broker)
        (generations,) = select(engine, "SELECT MIN(id) AS lowest, COUNT(*) AS n FROM generations")
        assert generations["lowest"] > 5, "most generations were dropped"
        assert generations["n"] == 1


GRANTED = ("SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX", "CREATE VIEW")


def test_broker_without_the_right_to_create_views_starts_and_says_what_to_grant(
    mysql_server: SqlServer, mysql_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """V15: the next start with the right creates the views, and a reader needs only SELECT."""
    database = MysqlAddress.parse(mysql_url).database
    users = f"broker_{database[-8:]}", f"reader_{database[-8:]}"
    for user in users:
        mysql_server.admin(f"CREATE USER {user}@'%' IDENTIFIED BY 'x'")
    broker, reader = (
        MysqlEngine(replace(MysqlAddress.parse(mysql_url), user=user, password="x"))
        for user in users
    )

    def start() -> None:
        async def once() -> None:
            async with testing.start(engine=broker) as world, world.connect() as client:
                with suppress(AlreadyExists):
                    await client.admin("subscriptions.create", topic="a", subscription="s")
                async with await client.producer("a") as producer:
                    await producer.send(b"x")
                await world.checkpoint()

        testing.run(once)

    try:
        mysql_server.admin(f"GRANT {GRANTED[0]} ON {database}.* TO {users[0]}@'%'")
        mysql_server.admin(f"GRANT SELECT ON {database}.* TO {users[1]}@'%'")
        start()
        (said,) = [one.getMessage() for one in caplog.records if "views" in one.getMessage()]
        assert "GRANT CREATE VIEW ON the database" in said
        with pytest.raises(pymysql.err.ProgrammingError, match="escapement_topics"):
            select(reader, "SELECT * FROM escapement_topics")
        mysql_server.admin(f"GRANT {GRANTED[1]} ON {database}.* TO {users[0]}@'%'")
        caplog.clear()
        start()
        assert not [one for one in caplog.records if "views" in one.getMessage()]
        (topic,) = select(reader, "SELECT topic, next_offset FROM escapement_topics")
        assert topic == {"topic": "public/default/a", "next_offset": 2}
        (pending,) = select(reader, "SELECT unacknowledged FROM escapement_pending")
        assert pending == {"unacknowledged": 2}
    finally:
        for user in users:
            mysql_server.admin(f"DROP USER {user}@'%'")


def test_view_of_another_version_is_replaced_and_a_missing_one_created(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V15."""
    schema.migrate(engine)
    ours = views.definitions(engine.kind)
    older = dict.fromkeys(ours, "SELECT 1 AS one")
    monkeypatch.setattr(views, "definitions", lambda kind: older)
    views.create_views(engine)
    assert list(select(engine, "SELECT * FROM escapement_topics")) == [{"one": 1}]
    monkeypatch.undo()
    views.create_views(engine)
    assert list(select(engine, "SELECT * FROM escapement_topics")) == []
    with closing(engine.connect()) as connection:
        connection.execute("DROP VIEW escapement_pending")
        views.create_views(engine)
        assert connection.execute("SELECT COUNT(*) FROM escapement_pending").rows == [(0,)]


def test_queries_of_the_guide_read_the_views(engine: Engine) -> None:
    """V15."""
    schema.migrate(engine)
    views.create_views(engine)
    texts = [one.text for one in blocks(DOCS / "guides/sql.md", "sql")]
    queries = [sql for text in texts for sql in text.split(";") if sql.strip().startswith("SELECT")]
    assert len(queries) == 3
    for sql in queries:
        assert select(engine, sql) == []
