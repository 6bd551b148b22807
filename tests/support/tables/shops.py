"""An application's database with message tables, on a real server, and a broker for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.client.consuming.batch import Message
from escapement.client.consuming.inbox import Inbox
from escapement.storage.engine.base import Engine
from escapement.tables.row_statements import NO_TIME_NS
from escapement.testing import World, arrived
from escapement.testing.clock import START_MS
from support.outbox.outboxes import Application, Rows

__all__ = ["NO_TIME_NS", "Shop", "comment", "serving_tables", "taken"]

# The table of the seed, with shorter times.
COMMENT: Final = (
    "vitess_message,vt_min_backoff=30,vt_max_backoff=3600,vt_ack_wait=30,vt_purge_after=86400,"
    "vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30"
)
CREATE: Final = """CREATE TABLE {name} (
    id BIGINT NOT NULL AUTO_INCREMENT,
    priority TINYINT NOT NULL DEFAULT '50',
    epoch BIGINT NOT NULL DEFAULT '0',
    time_next BIGINT DEFAULT 0,
    time_acked BIGINT DEFAULT NULL,
    tenant_id BIGINT,
    message JSON,
    PRIMARY KEY(id),
    INDEX poller_idx(time_acked, priority, time_next DESC)
) COMMENT '{comment}'"""
# The table "mails" with a partition for each day.
BY_DAY: Final = f"""CREATE TABLE mails (
        id BIGINT NOT NULL, day DATE NOT NULL, priority TINYINT NOT NULL DEFAULT 50,
        epoch BIGINT NOT NULL DEFAULT 0, time_next BIGINT DEFAULT 0, time_acked BIGINT,
        PRIMARY KEY (id, day), INDEX (time_acked, priority, time_next DESC)
    ) COMMENT '{COMMENT}'
    PARTITION BY RANGE COLUMNS (day) (
        PARTITION p1 VALUES LESS THAN ('2026-01-01'),
        PARTITION p2 VALUES LESS THAN ('2026-01-02'),
        PARTITION p3 VALUES LESS THAN ('2026-01-03'),
        PARTITION p4 VALUES LESS THAN ('2026-01-04'),
        PARTITION rest VALUES LESS THAN (MAXVALUE)
    )"""


def comment(**changes: object) -> str:
    """Return the COMMENT of a message table; None leaves a directive out."""
    values: dict[str, object] = {
        "ack_wait": 30,
        "purge_after": 86_400,
        "batch_size": 10,
        "cache_size": 10_000,
        "poller_interval": 30,
    }
    items = [f"{name}={value}" for name, value in (values | changes).items() if value is not None]
    return ",".join(["escapement_message", *items])


class Shop(Application):
    """The database of an application with message tables."""

    def create(self, name: str = "mails", comment: str = COMMENT) -> str:
        """Create a message table; return the name of its topic."""
        self.run(CREATE.format(name=name, comment=comment))
        return f"table://{self.address.database}/{name}"

    def insert(self, name: str = "mails", **values: Any) -> int:
        """Insert a row, and return its id."""
        columns = ", ".join(values)
        marks = ", ".join(["%s"] * len(values))
        with self.session() as cursor:
            cursor.execute(
                f"INSERT INTO {name} ({columns}) VALUES ({marks})", tuple(values.values())
            )
            cursor.connection.commit()
            return int(cursor.lastrowid)

    def fill(self, count: int, name: str = "mails", **values: Any) -> None:
        """Insert rows with the same values in one statement."""
        columns = ", ".join(values)
        row = "(" + ", ".join(["%s"] * len(values)) + ")"
        rows = ", ".join([row] * count)
        self.run(f"INSERT INTO {name} ({columns}) VALUES {rows}", *([*values.values()] * count))

    def row(self, id: object, columns: str, name: str = "mails") -> tuple[Any, ...]:
        """Return columns of the row with this id."""
        (row,) = self.run(f"SELECT {columns} FROM {name} WHERE id = %s", id)
        return tuple(row)

    def rows(self, columns: str, name: str = "mails") -> Rows:
        """Return columns of all rows, by id."""
        return self.run(f"SELECT {columns} FROM {name} ORDER BY id")


@asynccontextmanager
async def serving_tables(
    *shops: Shop,
    engine: Engine | None = None,
    config: BrokerConfig | None = None,
    start_ms: int = START_MS,
) -> AsyncIterator[World]:
    """Run a broker on a virtual clock that serves the message tables of these databases."""
    addresses = tuple(shop.address for shop in shops)
    config = replace(config or BrokerConfig(seed=0), tables=addresses)
    async with testing.start(config=config, engine=engine, start_ms=start_ms) as world:
        yield world


async def taken(world: World, inbox: Inbox, **time: float) -> list[Message]:
    """Advance the time, and return all messages that the consumer got."""
    await world.clock.advance(**time)
    return await arrived(inbox)
