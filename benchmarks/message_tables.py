"""Rows of an application's database as messages: message tables and outboxes.

    python benchmarks/message_tables.py backlog [--rows 1000000] [--plain-rows 100000]
    python benchmarks/message_tables.py lateness [--rate 2000] [--seconds 20]
    python benchmarks/message_tables.py outbox [--rows 200000]
    python benchmarks/message_tables.py single [--singles 200] [--binlog]

Each starts a private MariaDB or MySQL server with its default durability, and a broker with its log
in SQLite.

``backlog`` measures the time from the first delivery of many due rows until all are acknowledged.
Beside it, on rows of the same table, plain workers in SQL: each transaction selects due rows with
SKIP LOCKED, and marks them as done. They take 1 or 100 rows in a transaction.

``lateness`` inserts rows that are due 0.2 to 3.2 s later, and measures the time from each due time
until a consumer has the row.

``outbox`` measures how fast committed rows reach a consumer.

``single`` commits single rows, with pauses of 0.1 to 0.6 s, and measures the time from each COMMIT
until the consumer has the message: by a message table, and by an outbox.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pymysql
import trio
from database import add_options, database

from escapement.bench.host import host
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.consuming.inbox import Inbox
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.outbox.tables import CREATE
from escapement.tables.ddl import create_statement
from escapement.tables.directives import Directives

TABLE: Final = "mails"
DIRECTIVES: Final = Directives(
    ack_wait_ms=30_000,
    min_backoff_ms=30_000,
    max_backoff_ms=None,
    purge_after_ms=86_400_000,
    batch_size=1_000,
    cache_size=20_000,
    poll_interval_ms=1_000,
)
PAYLOAD: Final = '{"message": "hello world"}'


@contextlib.contextmanager
def session(url: str) -> Iterator[Any]:
    """Open a connection to the database, and provide a cursor of it."""
    to = MysqlAddress.parse(url)
    with contextlib.closing(
        pymysql.connect(
            host=to.host, port=to.port, user=to.user, password=to.password, database=to.database
        )
    ) as connection:
        yield connection.cursor()


@contextlib.asynccontextmanager
async def serving(**variables: str) -> AsyncIterator[Broker]:
    """Start a broker with these variables of its environment, and connect to it."""
    os.environ |= variables
    with tempfile.TemporaryDirectory() as data:
        async with host(None, Path(data), None) as started, connect(started.url) as broker:
            yield broker


def insert(cursor: Any, count: int) -> None:
    """Insert due rows."""
    for low in range(0, count, 10_000):
        some = min(10_000, count - low)
        values = ", ".join([f"('{PAYLOAD}')"] * some)
        cursor.execute(f"INSERT INTO {TABLE} (message) VALUES {values}")
    cursor.connection.commit()


def plain_worker(cursor: Any, rows: int, batch: int) -> float:
    """Process rows with transactions of ``batch`` rows; return the rows per second."""
    began_s, left = time.perf_counter(), rows
    while left:
        cursor.execute(
            f"SELECT id, message FROM {TABLE} WHERE time_acked IS NULL AND priority = 50"
            " AND time_next <= %s ORDER BY time_next LIMIT %s FOR UPDATE SKIP LOCKED",
            (time.time_ns(), min(batch, left)),
        )
        ids = [row[0] for row in cursor.fetchall()]
        cursor.execute(
            f"UPDATE {TABLE} SET time_acked = %s, time_next = NULL WHERE id IN %s",
            (time.time_ns(), ids),
        )
        cursor.connection.commit()
        left -= len(ids)
    return rows / (time.perf_counter() - began_s)


async def backlog(url: str, options: argparse.Namespace) -> None:
    """Measure a backlog of due rows."""
    with session(url) as cursor:
        cursor.execute(create_statement(TABLE, DIRECTIVES))
        for batch in (1, 100):
            count = options.plain_rows if batch > 1 else options.plain_rows // 10
            insert(cursor, count)
            print(f"plain worker, {batch} at a time: {plain_worker(cursor, count, batch):,.0f}/s")
        insert(cursor, options.rows)
        topic = f"table://{MysqlAddress.parse(url).database}/{TABLE}"
        async with serving(ESCAPEMENT_TABLES=url) as broker:
            async with broker.consumer(topic, "table", permits=10_000) as inbox:
                began_s, left = None, options.rows
                async for batch in inbox.batches():
                    began_s = began_s or time.perf_counter()
                    await inbox.ack(batch)
                    left -= len(batch)
                    if not left:
                        break
                await inbox.flush_acks()
                assert began_s is not None
                print(f"escapement: {options.rows / (time.perf_counter() - began_s):,.0f}/s")
        cursor.connection.commit()
        cursor.execute(f"SELECT COUNT(*) FROM {TABLE} WHERE time_acked IS NULL")
        print(f"rows not acknowledged: {cursor.fetchone()[0]}")


def percentiles(times_s: list[float]) -> str:
    """Return the percentiles of durations as text."""
    p50, p90, p99 = np.percentile(np.array(times_s) * 1000, [50, 90, 99])
    return f"p50 {p50:.1f} p90 {p90:.1f} p99 {p99:.1f} ms of {len(times_s):,}"


async def lateness(url: str, options: argparse.Namespace) -> None:
    """Measure how late rows are."""
    late_s: list[float] = []
    count = options.rate * options.seconds
    with session(url) as cursor:
        cursor.execute(create_statement(TABLE, DIRECTIVES))
        topic = f"table://{MysqlAddress.parse(url).database}/{TABLE}"
        async with (
            serving(ESCAPEMENT_TABLES=url) as broker,
            broker.consumer(topic, "table", permits=10_000) as inbox,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(trio.to_thread.run_sync, _insert_delayed, cursor, options)
            async for batch in inbox.batches():
                now_ms = time.time_ns() / 1e6
                late_s += ((now_ms - batch.due_ms) / 1000).tolist()
                await inbox.ack(batch)
                if len(late_s) >= count:
                    break
    assert min(late_s) >= 0, "a row was early"
    print(f"lateness at {options.rate}/s: {percentiles(late_s)}")


def _insert_delayed(cursor: Any, options: argparse.Namespace) -> None:
    each = options.rate // 100
    began_s = time.perf_counter()
    for turn in range(100 * options.seconds):
        time.sleep(max(began_s + turn / 100 - time.perf_counter(), 0))
        due = [time.time_ns() + int(random.uniform(0.2, 3.2) * 1e9) for _ in range(each)]
        values = ", ".join(f"({time_ns}, '{PAYLOAD}')" for time_ns in due)
        cursor.execute(f"INSERT INTO {TABLE} (time_next, message) VALUES {values}")
        cursor.connection.commit()


async def outbox(url: str, options: argparse.Namespace) -> None:
    """Measure an outbox."""
    insertion = "INSERT INTO escapement_outbox (topic, payload) VALUES "
    with session(url) as cursor:
        for statement in CREATE:
            cursor.execute(statement)
        for _ in range(0, options.rows, 1_000):
            cursor.execute(insertion + ", ".join(["('t', '%s')" % ("." * 100)] * 1_000))
        cursor.connection.commit()
        async with serving(ESCAPEMENT_OUTBOX=url) as broker:
            began_s, left = time.perf_counter(), options.rows
            async with broker.consumer("t", "s", position="earliest", permits=100_000) as inbox:
                async for batch in inbox.batches():
                    await inbox.ack(batch)
                    left -= len(batch)
                    if left <= 0:
                        break
                print(f"outbox: {options.rows / (time.perf_counter() - began_s):,.0f} rows/s")


async def single(url: str, options: argparse.Namespace) -> None:
    """Measure the time from the COMMIT of a single row until the consumer has the message."""
    with session(url) as cursor:
        for statement in (*CREATE, create_statement(TABLE, DIRECTIVES)):
            cursor.execute(statement)
        table = f"table://{MysqlAddress.parse(url).database}/{TABLE}"
        by_table = f"INSERT INTO {TABLE} (message) VALUES ('{{}}')"
        by_outbox = "INSERT INTO escapement_outbox (topic, payload) VALUES ('t', '{}')"
        where = {"ESCAPEMENT_TABLES": url, "ESCAPEMENT_OUTBOX": url}
        async with serving(**where, ESCAPEMENT_BINLOG=str(options.binlog)) as broker:
            for topic, subscription, sql in ((table, "table", by_table), ("t", "s", by_outbox)):
                async with broker.consumer(topic, subscription) as inbox:
                    trips_s = [await _trip(inbox, cursor, sql) for _ in range(options.singles)]
                print(f"{topic}, from COMMIT to the consumer: {percentiles(trips_s)}")


async def _trip(inbox: Inbox, cursor: Any, sql: str) -> float:
    await trio.sleep(random.uniform(0.1, 0.6))

    def commit() -> float:
        cursor.execute(sql)
        cursor.connection.commit()
        return time.perf_counter()

    committed_s = await trio.to_thread.run_sync(commit)
    message = await inbox.receive()
    took_s = time.perf_counter() - committed_s
    await inbox.ack(message)
    return took_s


MEASUREMENTS: Final[dict[str, Callable[[str, argparse.Namespace], Any]]] = {
    "backlog": backlog,
    "lateness": lateness,
    "outbox": outbox,
    "single": single,
}


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=MEASUREMENTS)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--plain-rows", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=2_000, help="rows a second, for lateness")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--binlog", action="store_true", help="let the broker read the binary log")
    add_options(parser)
    options = parser.parse_args()
    if options.rows is None:
        options.rows = 1_000_000 if options.what == "backlog" else 200_000
    binlog = ("--log-bin", "--server-id=1", "--binlog-format=ROW") if options.binlog else ()
    with database(options, *binlog) as server:
        url = server.url("bench_tables")
        with session(server.url("mysql")) as cursor:
            cursor.execute("CREATE DATABASE bench_tables")
        trio.run(MEASUREMENTS[options.what], url, options)


if __name__ == "__main__":
    sys.exit(main())
