"""How fast finished messages are archived: read, written as Parquet, verified, recorded.

    python benchmarks/archive.py [--messages 10000000] [--runs 2] [--buffer-pool 4G] [--by-spark]

Starts a private MariaDB or MySQL server and a broker on it, publishes messages of 100 random
bytes to a topic without subscriptions, and stops the broker. Then the job ``archive`` writes them
as Parquet to this machine's disk, with two tasks at a time. The first run is also the first of
the Spark session, as with the command. Later runs archive the same messages again. Prints
messages a second, the processor seconds by kind of process, and the size of the files. With
``--by-spark`` the archive's root is a Spark name (``viewfs``) of the same directory, so that
Spark writes and reads the files, not the tasks themselves.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import trio
from database import add_options, database
from spark_read import BATCH, IN_FLIGHT, VARIETY, batches, session

import escapement
from escapement.errors import InvalidRequest
from escapement.pipeline.archive import ArchiveConfig, run
from escapement.pipeline.jvm import COMPILES_ONCE
from escapement.storage.engine.open import open_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.processes.broker import broker_process
from support.processes.processor_time import processor_time, spent

NAMESPACE = "public/archived"
TOPIC = f"{NAMESPACE}/x"


async def publish(url: str, messages: int) -> None:
    """Create a namespace to be archived, and publish all messages to a topic in it."""
    different, left = batches(), iter(range(messages // BATCH))
    async with escapement.connect(url) as broker:
        await broker.admin("namespaces.create", namespace=NAMESPACE)
        policy = {"archive": "yes", "retention_ms": "0s"}
        await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
        async with await broker.producer(TOPIC) as producer, trio.open_nursery() as nursery:

            async def send() -> None:
                for number in left:
                    await producer.send_batch(different[number % VARIETY])

            for _ in range(IN_FLIGHT):
                nursery.start_soon(send)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=2, help="runs after the first")
    parser.add_argument(
        "--by-spark", action="store_true", help="let Spark write and read the files"
    )
    add_options(parser)
    options = parser.parse_args()
    if options.messages % BATCH or options.messages <= 0:
        raise InvalidRequest(f"--messages must be a positive multiple of {BATCH}")
    with database(options) as server, tempfile.TemporaryDirectory() as directory:
        url = server.url("log")
        with broker_process(Path(directory) / "data", url) as broker:
            trio.run(publish, broker.url, options.messages)
            broker.stop()
        print("published", flush=True)
        spark = session(None, COMPILES_ONCE)  # the same Java options as the command
        root = f"{directory}/archive"
        if options.by_spark:
            spark.conf.set("fs.viewfs.mounttable.here.link./mnt", Path(directory).as_uri())
            root = "viewfs://here/mnt/archive"
        engine = open_engine(url, Path(directory))
        for number in range(options.runs + 1):
            connection = engine.connect()
            for table in ("archives", "archived_chunks"):
                connection.execute(f"DELETE FROM {table}")
            connection.close()
            before = processor_time()
            began_s = time.perf_counter()
            done = run(spark, ArchiveConfig({"url": url}, root))
            took_s = time.perf_counter() - began_s
            times = [f"{kind} {seconds:.1f}" for kind, seconds in spent(before).items()]
            assert done.messages == options.messages, done
            shutil.rmtree(f"{directory}/archive")
            print(
                f"{'later' if number else 'first run':12}"
                f" {options.messages / took_s:>12,.0f} messages/s, {took_s:.1f} s,"
                f" {done.size_bytes / 1e6:,.0f} MB; processor seconds: {', '.join(times)}",
                flush=True,
            )
        spark.stop()


if __name__ == "__main__":
    main()
