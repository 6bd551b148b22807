"""How much of the log remains when one message in a thousand is due next year.

    python benchmarks/retention.py [--log URL | --sqlite] [--messages 10000000]

Publishes batches of a thousand messages of 100 bytes, the last of each due in a year, in a
namespace that retains nothing. Takes and acknowledges the others. Then waits until the broker has
deleted the finished messages from the log, and prints the size of the log until then. During this
wait, a steady stream of messages flows through another topic. Its lateness shows whether the
relocation of pending messages and the deletion of finished ones disturb delivery. Without a URL it
starts a private MariaDB or MySQL server. This measures promise P11 of docs/features.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import trio
from figures import databases

from escapement.bench.host import host
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.message import Blobs, MessageBatch, Times
from escapement.storage.engine.base import Connection
from escapement.storage.engine.open import open_engine

NAMESPACE, TOPIC = "bench/retention", "bench/retention/x"
STEADY_TOPIC = "bench/retention/steady"
BATCH = 1_000
YEAR_MS = 366 * 86_400_000
# The most batches in flight, sent and without a receipt.
IN_FLIGHT = 16
# The steady stream: the time between batches, their size, and their delay.
BEAT_S, BEAT_MESSAGES, BEAT_DELAY_MS = 0.02, 10, 500
# The time between two lines of figures.
WATCH_S = 10
# The free space that a database may keep in its files, for reuse.
SPARE_BYTES = 8 * 1024 * 1024


def log_bytes(connection: Connection) -> int:
    """Return the total size of the log's rows, in bytes."""
    found = connection.execute("SELECT id, parallelism FROM generations").rows
    tables = [f"log_{id}_{shard}" for id, parallelism in found for shard in range(parallelism)]
    sizes = [f"SELECT COALESCE(SUM(size_bytes), 0) FROM {table}" for table in tables]
    return sum(int(connection.execute(size).rows[0][0]) for size in sizes)


def file_bytes(connection: Connection, path: Path | None) -> int:
    """Return the size of the log on disk: of SQLite's file at ``path``, or of MySQL's tables."""
    if path is not None:
        return path.stat().st_size
    found = connection.execute("SELECT id, parallelism FROM generations").rows
    for id, parallelism in found:
        for shard in range(parallelism):
            connection.execute(f"ANALYZE TABLE log_{id}_{shard}")
    return int(
        connection.execute(
            "SELECT SUM(data_length) FROM information_schema.tables"
            " WHERE table_schema = DATABASE() AND table_name REGEXP '^log_[0-9]'"
        ).rows[0][0]
    )


async def publish(broker: Broker, batches: int) -> None:
    """Publish all batches, several at a time."""
    batch = MessageBatch(Blobs.of([b"." * 100] * BATCH))
    delays = np.zeros(BATCH, np.int64)
    delays[-1] = YEAR_MS
    left = iter(range(batches))
    async with await broker.producer(TOPIC) as producer, trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in left:
                await producer.send_batch(batch, Times(delays))

        for _ in range(IN_FLIGHT):
            nursery.start_soon(send)


async def take(broker: Broker, messages: int) -> None:
    """Take all messages that are due, and acknowledge them durably."""
    async with broker.consumer(TOPIC, "s", permits=100_000) as inbox:
        while messages:
            batch = await inbox.next_batch(60)
            assert batch is not None, f"{messages} messages did not arrive"
            messages -= len(batch.offsets)
            await batch.ack()
        await inbox.flush_acks()


async def stream(broker: Broker) -> None:
    """Publish the steady stream forever."""
    batch = MessageBatch(Blobs.of([b"steady"] * BEAT_MESSAGES))
    delays = Times(np.full(BEAT_MESSAGES, BEAT_DELAY_MS))
    async with await broker.producer(STEADY_TOPIC) as producer, trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(producer.send_batch, batch, delays)
            await trio.sleep(BEAT_S)


async def lateness(
    broker: Broker, late_ms: list[np.ndarray[tuple[int], np.dtype[np.int64]]]
) -> None:
    """Take the steady stream forever, and record how late each message was."""
    async with broker.consumer(STEADY_TOPIC, "s", permits=10_000) as inbox:
        async for batch in inbox.batches():
            late_ms.append(time.time_ns() // 1_000_000 - batch.due_ms)
            await batch.ack()


async def watch(
    connection: Connection,
    path: Path | None,
    late_ms: list[np.ndarray[tuple[int], np.dtype[np.int64]]],
) -> None:
    """Print the size of the log and the lateness, until the log has shrunk to 2 % of its peak.

    Its files must shrink to 2 % too, plus the free space that the database may keep.

    Args:
      late_ms: gets the lateness of the steady stream. Each line of figures empties it.
    """
    most, most_files, files, began_s, share = 0, 0, 0, trio.current_time(), 1.0
    while share >= 0.02 or files >= 0.02 * most_files + SPARE_BYTES:
        await trio.sleep(WATCH_S)
        rows, files = log_bytes(connection), file_bytes(connection, path)
        most, most_files = max(most, rows), max(most_files, files)
        share = rows / most
        late = np.concatenate(late_ms or [np.zeros(1)])
        late_ms.clear()
        p50, p99 = np.percentile(late, [50, 99])
        print(
            f"{trio.current_time() - began_s:6.0f} s: rows {rows:,} bytes ({share:.2%}),"
            f" on disk {files:,}; {len(late):,} late p50 {p50:.0f}, p99 {p99:.0f},"
            f" at most {late.max():.0f} ms",
            flush=True,
        )


async def measure(log: str | None, data: Path, messages: int) -> None:
    """Publish and take the messages, and watch the log shrink."""
    batches = messages // BATCH
    async with host(None, data, log) as on, connect(on.url) as broker:
        await broker.admin("namespaces.create", namespace=NAMESPACE)
        await broker.admin("namespaces.enable_delayed_message", namespace=NAMESPACE, tick_ms=10)
        policy = {"retention_ms": 0}
        await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
        for topic in (TOPIC, STEADY_TOPIC):
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
        engine = open_engine(log, data)
        connection = engine.connect()
        path = Path(engine.location) if engine.kind == "sqlite" else None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, broker, batches)
            nursery.start_soon(take, broker, batches * (BATCH - 1))
        print(f"{messages:,} messages, {batches:,} of them due next year")
        async with connect(on.url) as other, trio.open_nursery() as nursery:
            late_ms: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
            nursery.start_soon(stream, other)
            nursery.start_soon(lateness, broker, late_ms)
            await watch(connection, path, late_ms)
            nursery.cancel_scope.cancel()
        connection.close()
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", help="URL of a database to use instead of a private server")
    parser.add_argument("--sqlite", action="store_true", help="use SQLite")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--data", type=Path, required=True, help="an empty directory")
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    with databases(options) as database, database() as log:
        trio.run(measure, log, options.data, options.messages)


if __name__ == "__main__":
    main()
