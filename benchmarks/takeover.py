"""How soon a broker without a delayed index delivers, however many messages are pending.

    python benchmarks/takeover.py [--pending 1000000,10000000] [--finished 0] [--runs 3] [--sqlite]
        [--index removed|copied|linked]

A broker that takes a database over on another machine has no index. The script publishes a million
messages of 20 random bytes, in batches of 10,000, to a topic with a subscription. They are due at
random times within thirty days, the first in an hour. For more pending messages it copies the rows
of the log in the database, which is faster. In each run it publishes a thousand messages that are
due at once when nobody consumes them, kills the broker, deletes the index, and starts the broker
again. With --finished, the log also has this many rows (of one message each, rounded up to a power
of two) that were due an hour ago or before and that no subscription wants. It prints the seconds
from the start of the process until it serves, until a consumer has the first overdue message, and
until the consumer has all of them.

With --index copied or linked, the broker starts with the files of the index that the killed one
had. They are copied or linked when the time has begun, as a new owner would do that fetches them
from a directory which the nodes share.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import trio
from database import add_options, database

import escapement
from escapement.message import Blobs, MessageBatch, Times
from escapement.storage.engine.open import open_engine
from escapement.storage.log.log import Log

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.processes.broker import BrokerProcess, broker_process

TOPIC, FINISHED, PUBLISHED = "x", "finished", 1_000_000
BATCH, PAYLOAD_BYTES, OVERDUE = 10_000, 20, 1_000
# The range of the delays: no message is due before the benchmark ends.
FIRST_MS, LAST_MS = 3_600_000, 30 * 86_400_000


async def publish(url: str, messages: int, first_ms: int, last_ms: int) -> None:
    """Publish messages with random delays, in batches, to the topic."""
    rng = np.random.default_rng(1)
    async with escapement.connect(url) as client, await client.producer(TOPIC) as producer:
        for count in [BATCH] * (messages // BATCH) or [messages]:
            lengths = np.full(count, PAYLOAD_BYTES, np.uint32)
            batch = MessageBatch(Blobs(lengths, rng.bytes(count * PAYLOAD_BYTES)))
            await producer.send_batch(batch, Times(rng.integers(first_ms, last_ms + 1, count)))


async def subscribe(url: str) -> None:
    """Create the topic with a subscription."""
    async with escapement.connect(url) as client:
        await client.admin("subscriptions.create", topic=TOPIC, subscription="s")


def copy_rows(url: str | None, data: Path, messages: int) -> None:
    """Copy the rows of the log until the topic has this many messages. No broker runs."""
    engine = open_engine(url, data)
    with closing(engine.connect()) as connection:
        given = (TOPIC,)
        topic_id = connection.execute("SELECT id FROM topics WHERE name = ?", given).rows[0][0]
        table = Log.look(connection).current.table(topic_id)
        columns = "message_count, min_due_ms, max_due_ms, owner_epoch, accepted_at_ms, kind"
        for end in range(PUBLISHED, messages, PUBLISHED):
            connection.execute(
                f"INSERT INTO {table} (topic_id, base_offset, {columns}, size_bytes, data)"
                f" SELECT topic_id, base_offset + {end}, {columns}, size_bytes, data FROM {table}"
                f" WHERE topic_id = {topic_id} AND base_offset < {PUBLISHED}"
            )
        connection.execute(f"UPDATE topics SET next_offset = {messages} WHERE id = {topic_id}")
    engine.close()


async def publish_finished(url: str) -> None:
    """Publish a message to a topic without a subscription."""
    async with escapement.connect(url) as client, await client.producer(FINISHED) as producer:
        await producer.send(b"")


def copy_finished(url: str | None, data: Path, rows: int) -> None:
    """Copy the row of ``publish_finished`` until there are this many or more. No broker runs."""
    engine = open_engine(url, data)
    with closing(engine.connect()) as connection:
        given = (FINISHED,)
        topic_id = connection.execute("SELECT id FROM topics WHERE name = ?", given).rows[0][0]
        table, count = Log.look(connection).current.table(topic_id), 1
        connection.execute(
            f"UPDATE {table} SET min_due_ms = min_due_ms - {FIRST_MS},"
            f" max_due_ms = max_due_ms - {FIRST_MS} WHERE topic_id = {topic_id}"
        )
        times = "min_due_ms", "max_due_ms"
        columns = "message_count, owner_epoch, accepted_at_ms, kind, size_bytes, data"
        while count < rows:
            earlier = ", ".join(f"{column} - {count}" for column in times)
            connection.execute(
                f"INSERT INTO {table} (topic_id, base_offset, {', '.join(times)}, {columns})"
                f" SELECT topic_id, base_offset + {count}, {earlier}, {columns} FROM {table}"
                f" WHERE topic_id = {topic_id}"
            )
            count *= 2
        connection.execute(f"UPDATE topics SET next_offset = {count} WHERE id = {topic_id}")
    engine.close()


async def take(url: str) -> tuple[float, float]:
    """Take the overdue messages; return when the first and when the last has arrived."""
    async with escapement.connect(url) as client, client.consumer(TOPIC, "s") as inbox:
        found = [await inbox.receive()]
        first_s = time.perf_counter()
        while len(found) < OVERDUE:
            found.append(await inbox.receive(60))
            assert found[-1] is not None, "an overdue message is missing"
        last_s = time.perf_counter()
        assert await inbox.receive(0.5) is None, "a message has arrived early or twice"
        await inbox.ack([one.id for one in found if one is not None], durable=True)
        return first_s, last_s


def once(broker: BrokerProcess, index: str) -> tuple[float, float, float]:
    """Kill the broker, and start it without its index, or with fetched files of it.

    Returns the three durations.
    """
    trio.run(publish, broker.url, OVERDUE, 1_000, 1_000)
    time.sleep(2)
    broker.kill()
    shared = broker.index.with_name("shared")
    shutil.rmtree(shared, ignore_errors=True)
    broker.index.rename(shared)
    began_s = time.perf_counter()
    if index != "removed":
        copy = os.link if index == "linked" else shutil.copyfile
        shutil.copytree(shared, broker.index, copy_function=copy)
    broker.start()
    serves_s = time.perf_counter()
    first_s, last_s = trio.run(take, broker.url)
    return serves_s - began_s, first_s - began_s, last_s - began_s


async def filled(url: str) -> None:
    """Wait until the broker has filled its index."""
    async with escapement.connect(url) as client:
        while True:
            try:
                await client.forecast(TOPIC)
                return
            except escapement.Busy:
                await trio.sleep(1)


def measure(
    url: str | None, data: Path, pending: int, finished: int, runs: int, index: str
) -> None:
    """Print the figures for this many pending messages and finished rows."""
    with broker_process(data, url) as broker:
        trio.run(subscribe, broker.url)
        if finished:
            trio.run(publish_finished, broker.url)
        trio.run(publish, broker.url, PUBLISHED, FIRST_MS, LAST_MS)
        broker.stop()
        copy_rows(url, data, pending)
        if finished:
            copy_finished(url, data, finished)
        shutil.rmtree(broker.index)
        broker.start()
        if index != "removed":
            trio.run(filled, broker.url)
            broker.stop()
            broker.start()
        found = [once(broker, index) for _ in range(runs)]
    names = ("serves", "first overdue message", "last of a thousand")
    for name, values in zip(names, zip(*found, strict=True), strict=True):
        low, high = min(values), max(values)
        median = statistics.median(values)
        print(f"{pending:,} pending: {name} after {median:.2f} s ({low:.2f} to {high:.2f})")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pending", default="1000000,10000000", help="numbers, with commas")
    parser.add_argument("--finished", type=int, default=0, help="rows of finished messages")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--index", choices=("removed", "copied", "linked"), default="removed")
    add_options(parser)
    options = parser.parse_args()
    for pending in map(int, options.pending.split(",")):
        with (
            nullcontext() if options.sqlite else database(options) as server,
            tempfile.TemporaryDirectory() as directory,
        ):
            url = server.url("log") if server is not None else None
            data = Path(directory) / "data"
            measure(url, data, pending, options.finished, options.runs, options.index)


if __name__ == "__main__":
    main()
