"""How fast what is done is archived: read, written as Parquet, read back, verified, recorded.

    python benchmarks/archive.py [--messages 10000000] [--runs 2]

Starts a private MariaDB or MySQL server and a broker on it, publishes messages of 100 random
bytes that nobody is to get, and stops the broker. Then the job ``archive`` takes them to Parquet
on this machine's disk, with two tasks at a time; once to warm up, and each time anew. Prints
messages a second, the processor seconds of Spark with its Python, and the size of the files.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import trio
from spark_read import BATCH, IN_FLIGHT, VARIETY, batches, session

import escapement
from escapement.errors import InvalidRequest
from escapement.pipeline.archive import ArchiveConfig, run
from escapement.storage.engine.open import open_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from brokers import broker_process
from servers import private_server

NAMESPACE = "public/archived"
TOPIC = f"{NAMESPACE}/x"


async def publish(url: str, messages: int) -> None:
    """All messages, some batches at a time."""
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


def processor_s() -> float:
    """Processor seconds that this process and all below it have used."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours, found = {os.getpid()}, 0
    while len(ours) > found:
        found = len(ours)
        ours |= {id for id, parent in parents.items() if parent in ours}
    return sum(used[id] for id in ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    if options.messages % BATCH or options.messages <= 0:
        raise InvalidRequest(f"messages come in batches of {BATCH}")
    with private_server() as server, tempfile.TemporaryDirectory() as directory:
        url = server.url("log")
        with broker_process(Path(directory) / "data", url) as broker:
            trio.run(publish, broker.url, options.messages)
            broker.stop()
        print("published", flush=True)
        spark = session(None)
        engine = open_engine(url, Path(directory))
        for number in range(options.runs + 1):
            connection = engine.connect()
            for table in ("archives", "archived_chunks"):
                connection.execute(f"DELETE FROM {table}")
            connection.close()
            before_s = processor_s() - server.processor_s()
            began_s = time.perf_counter()
            done = run(spark, ArchiveConfig({"url": url}, f"{directory}/archive-{number}"))
            took_s = time.perf_counter() - began_s
            used_s = processor_s() - server.processor_s() - before_s
            assert done.messages == options.messages, done
            print(
                f"{'warming up' if not number else 'archived':12}"
                f" {options.messages / took_s:>12,.0f} messages/s, {took_s:.1f} s,"
                f" {used_s:.1f} processor seconds, {done.size_bytes / 1e6:,.0f} MB",
                flush=True,
            )
        spark.stop()


if __name__ == "__main__":
    main()
