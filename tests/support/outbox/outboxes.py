"""An application's database with an outbox, on a real server, and a broker that serves it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pymysql

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.errors import NotFound
from escapement.sql import schedule
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.outbox.ack_table import CREATE_ACKS
from escapement.storage.outbox.tables import CREATE
from escapement.testing import World
from escapement.testing.clock import START_MS
from support.messages.received_messages import in_log

Rows = tuple[tuple[Any, ...], ...]


class Application:
    """The database of an application. Each connection of it is one session of the application."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.address = MysqlAddress.parse(url)
        self.engine = MysqlEngine(self.address, creates=False)

    def install(self) -> None:
        """Create the outbox, and the table of acknowledgements."""
        for statement in (*CREATE, CREATE_ACKS):
            self.run(statement)

    def connect(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """Open a connection, which the caller closes."""
        to = self.address
        where: dict[str, Any] = {"host": to.host, "port": to.port, "user": to.user}
        where |= {"password": to.password, "database": to.database, "ssl_disabled": True}
        return pymysql.connect(**where)

    @contextlib.contextmanager
    def session(self) -> Iterator[pymysql.cursors.Cursor]:
        """Open a connection and provide a cursor of it. The test commits or rolls back."""
        with contextlib.closing(self.connect()) as connection:
            with connection.cursor() as cursor:
                yield cursor

    def run(self, sql: str, *parameters: Any) -> Rows:
        """Run one statement in a transaction of its own, and return its rows."""
        with self.session() as cursor:
            cursor.execute(sql, parameters or None)
            cursor.connection.commit()
            return tuple(cursor.fetchall())

    @property
    def on_mariadb(self) -> bool:
        """Whether the server is MariaDB, and not MySQL."""
        return "mariadb" in str(self.run("SELECT VERSION()")[0][0]).lower()

    def send(self, *payloads: bytes, topic: str = "t", **options: Any) -> None:
        """Send messages in one transaction."""
        with self.session() as cursor:
            for payload in payloads:
                schedule(cursor, topic, payload, **options)
            cursor.connection.commit()

    @property
    def left(self) -> int:
        """The number of committed rows in the outbox."""
        return int(self.run("SELECT COUNT(*) FROM escapement_outbox")[0][0])

    @property
    def refusals(self) -> list[tuple[bytes, str]]:
        """The payload and the reason of each refused row."""
        rows = self.run("SELECT payload, reason FROM escapement_outbox_refused ORDER BY refused_id")
        return [(bytes(payload), reason) for payload, reason in rows]


@asynccontextmanager
async def serving(
    *applications: Application,
    engine: Engine | None = None,
    config: BrokerConfig | None = None,
    start_ms: int = START_MS,
) -> AsyncIterator[World]:
    """Run a broker on a virtual clock that serves the outboxes of these applications."""
    addresses = tuple(application.address for application in applications)
    config = replace(config or BrokerConfig(seed=0), outboxes=addresses)
    async with testing.start(config=config, engine=engine, start_ms=start_ms) as world:
        yield world


async def moved(world: World, topic: str = "t") -> list[bytes]:
    """Let the relay take its turn, and return the payloads of a topic in the order of its log."""
    await world.clock.advance(seconds=10)
    async with world.connect() as broker:
        try:
            return await in_log(broker, topic)
        except NotFound:
            return []
