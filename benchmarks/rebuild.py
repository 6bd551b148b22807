"""How fast a delayed index is rebuilt from the log, by the job and by the start of a broker.

    python benchmarks/rebuild.py [--messages 10000000] [--runs 3] [--spark]

Starts a private MariaDB or MySQL server and a broker on it. Publishes messages of 100 random
bytes, in batches of a thousand and with random delays of up to thirty days, to one topic with
one subscription, and stops the broker. Then the job rebuilds the index in an empty directory,
several times. At the end a broker starts on another empty directory, and fills its index while it
serves.

Two more measurements show the bounds of the job: only reading the same rows from the database, and
only writing as many bytes to the same disk. Prints messages a second by the clock, and the
processor seconds of this process and of the database. With --spark it also measures the job's Spark
engine, on all cores of this machine, in a session that is already started.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import trio
from database import add_options, database

import escapement
from escapement.errors import InvalidRequest
from escapement.message import Blobs, MessageBatch, Times
from escapement.pipeline.rebuild import RebuildConfig, run
from escapement.pipeline.rebuilding.filling import all_rows
from escapement.pipeline.session import session
from escapement.storage.engine.open import open_engine
from escapement.storage.index.segments.direct_file import DirectFile
from escapement.storage.log.log import Log

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.database.servers import MysqlServer
from support.processes.broker import broker_process

TOPIC = "x"
BATCH, PAYLOAD_BYTES = 1_000, 100
# The number of batches in flight, sent and without a receipt, and of different batches.
IN_FLIGHT, VARIETY = 32, 32
# The range of the delays: no message is due before the benchmark ends.
FIRST_MS, LAST_MS = 3_600_000, 30 * 86_400_000


async def publish(url: str, messages: int) -> None:
    """Create the topic with a subscription, and publish all messages to it."""
    rng = np.random.default_rng(1)
    lengths = np.full(BATCH, PAYLOAD_BYTES, np.uint32)
    different = [
        MessageBatch(Blobs(lengths, rng.bytes(BATCH * PAYLOAD_BYTES))) for _ in range(VARIETY)
    ]
    left = iter(range(messages // BATCH))
    async with escapement.connect(url) as broker:
        await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
        async with await broker.producer(TOPIC) as producer, trio.open_nursery() as nursery:

            async def send() -> None:
                for number in left:
                    delays = rng.integers(FIRST_MS, LAST_MS, BATCH)
                    await producer.send_batch(different[number % VARIETY], Times(delays))

            for _ in range(IN_FLIGHT):
                nursery.start_soon(send)


class Meter:
    """A meter of a step that handles ``messages``: its time by the clock, and processor time."""

    def __init__(self, server: MysqlServer, messages: int) -> None:
        self._server = server
        self._messages = messages
        self._began_s, self._used_s = time.perf_counter(), self._processor_s()

    def end(self, what: str) -> float:
        """Print the figures of the step ``what``, and return its rate in messages a second."""
        rate = self._messages / (time.perf_counter() - self._began_s)
        own, server = (
            now - then for now, then in zip(self._processor_s(), self._used_s, strict=True)
        )
        print(
            f"{what}: {rate:,.0f} messages/s; processor seconds: {own:.1f} here,"
            f" {server:.1f} of the database",
            flush=True,
        )
        return rate

    def _processor_s(self) -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime, self._server.processor_s()


def read_alone(url: str) -> None:
    """Read the log rows that the job reads, over as many connections, and ignore them."""
    engine = open_engine(url, Path())
    connection = engine.connect()
    for _ in all_rows(engine, Log.look(connection), connection):
        pass
    connection.close()
    engine.close()


def write_alone(directory: Path, size_bytes: int) -> None:
    """Write ``size_bytes`` to one file in ``directory``, in the same way as the job."""
    file, block = DirectFile(directory / "written"), np.random.default_rng(1).bytes(4 << 20)
    for _ in range(size_bytes >> 22):
        file.write(block)
    file.flush()
    os.fsync(file.fileno())
    file.close()
    (directory / "written").unlink()


def by_tasks(directory: Path, url: str, server: MysqlServer, options: argparse.Namespace) -> None:
    """Measure the job's Spark engine, as many times as the job without Spark."""
    with session("benchmark", "local[*]") as spark:
        spark.range(1).count()
        for number in range(options.runs):
            data = directory / f"by-tasks{number}"
            meter = Meter(server, options.messages)
            assert run(spark, RebuildConfig(data, url, "spark")).pending == options.messages
            meter.end("the job on Spark")
            shutil.rmtree(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    add_options(parser)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    if options.messages % BATCH or options.messages <= 0:
        raise InvalidRequest(f"--messages must be a positive multiple of {BATCH}")
    with database(options) as server, tempfile.TemporaryDirectory() as directory:
        url = server.url("log")
        with broker_process(Path(directory) / "data", url) as broker:
            trio.run(publish, broker.url, options.messages)
            broker.stop()
        rates = []
        for number in range(options.runs):
            data = Path(directory) / f"rebuilt{number}"
            meter = Meter(server, options.messages)
            done = run(None, RebuildConfig(data, url))
            rates.append(meter.end("the job"))
            assert done.pending == options.messages
            size_bytes = sum(path.stat().st_size for path in (data / "index").iterdir())
            shutil.rmtree(data)
            meter = Meter(server, options.messages)
            read_alone(url)
            meter.end("reading alone")
            meter = Meter(server, options.messages)
            write_alone(Path(directory), size_bytes)
            meter.end(f"writing {size_bytes / 1e6:.0f} MB alone")
        if options.spark:
            by_tasks(Path(directory), url, server, options)
        print(f"the job, the median: {statistics.median(rates):,.0f} messages/s", flush=True)
        began_s = time.perf_counter()
        with broker_process(Path(directory) / "own", url) as broker:
            while "the index is complete" not in broker.complaints():
                time.sleep(0.05)
            rate = options.messages / (time.perf_counter() - began_s)
            print(f"a broker that serves meanwhile: {rate:,.0f} messages/s")
            broker.stop()


if __name__ == "__main__":
    main()
