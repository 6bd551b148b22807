"""How fast Spark reads a topic, and how fast it reads the same messages from a table by JDBC.

    python benchmarks/spark_read.py [--messages 10000000] [--runs 3]
        [--jdbc-messages 10000000] [--jdbc-jar FILE] [--buffer-pool 4G]
        [--java-options="-Dx=y ..."]

Starts a private MariaDB or MySQL server and a broker on it, publishes messages of 100 random
bytes with random delays in batches of a thousand, and stops the broker. Then Spark, with two
tasks at a time on this machine, reads everything and writes nothing:

- offset, time and payload;
- all ten columns;
- the three columns from a data source that has them in memory. This measures Spark's conversion
  of Arrow's columns to its rows, which limits every data source that yields Arrow's columns;
- the three columns by JDBC, from a table on the same server with a row for each message and the
  same payloads. It uses as many partitions as the topic, fetches ten thousand rows at a time, and
  reads times as numbers, which need no conversion. The driver is MariaDB's Connector/J (``apt-get
  install libmariadb-java``). Without its jar, this part is left out.

Prints rows a second (the median of the runs after a warm-up), the processor seconds of the runs
by kind of process, and how much the database read from disk. Ten million messages take some
three minutes on an idle machine. With the server's default buffer pool (128 MB), most of the log
is read from disk each time. With ``--buffer-pool 4G`` the log, and later the table, stay in
memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import trio
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import escapement
from escapement.errors import InvalidRequest
from escapement.message import Blobs, MessageBatch, Times
from escapement.pipeline.arrow import arrow_schema
from escapement.pipeline.jvm import provide_java
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from database import add_options, database

from support.database.servers import MysqlServer
from support.processes.broker import broker_process
from support.processes.processor_time import processor_time, spent

TOPIC = "x"
BATCH, PAYLOAD_BYTES = 1_000, 100
# The number of batches in flight, sent and without a receipt, and of different batches.
IN_FLIGHT, VARIETY = 32, 32
DAY_MS = 86_400_000
JDBC_JAR = "/usr/share/java/mariadb-java-client.jar"
# The three columns, as Spark declares a schema.
THREE = "offset BIGINT NOT NULL, deliver_at TIMESTAMP NOT NULL, payload BINARY NOT NULL"
# The number of rows in an Arrow batch of the data source ``Memory``.
ARROW_ROWS = 10_000
# The number of rows that the JDBC driver fetches at once.
FETCH_ROWS = 10_000


def batches() -> list[MessageBatch]:
    rng = np.random.default_rng(1)
    size = BATCH * PAYLOAD_BYTES
    lengths = np.full(BATCH, PAYLOAD_BYTES, np.uint32)
    return [MessageBatch(Blobs(lengths, rng.bytes(size))) for _ in range(VARIETY)]


async def publish(url: str, messages: int) -> None:
    """Publish all messages, several batches at a time."""
    different, left = batches(), iter(range(messages // BATCH))
    rng = np.random.default_rng(2)
    async with escapement.connect(url) as broker:
        async with await broker.producer(TOPIC) as producer, trio.open_nursery() as nursery:

            async def send() -> None:
                for number in left:
                    delays = rng.integers(0, 30 * DAY_MS, BATCH)
                    await producer.send_batch(different[number % VARIETY], Times(delays))

            for _ in range(IN_FLIGHT):
                nursery.start_soon(send)


def fill_table(engine: Engine, messages: int) -> None:
    """Create a table with one row for each message, and the payloads of ``batches`` in turn."""
    payloads = [one for batch in batches() for one in batch.payloads.to_list()]
    connection = engine.connect()
    connection.execute(
        f"CREATE TABLE messages (id BIGINT PRIMARY KEY, deliver_at BIGINT NOT NULL,"
        f" payload VARBINARY({PAYLOAD_BYTES}) NOT NULL){engine.dialect.table_end}"
    )
    connection.begin()
    connection.execute_many(
        "INSERT INTO messages (id, deliver_at, payload) VALUES (?, ?, ?)",
        [(at, at, one) for at, one in enumerate(payloads[:messages])],
    )
    connection.commit()
    for first in range(len(payloads), messages, len(payloads)):
        connection.execute(
            "INSERT INTO messages (id, deliver_at, payload) SELECT id + ?, deliver_at + ?, payload"
            " FROM messages WHERE id < ?",
            (first, first, min(len(payloads), messages - first)),
        )
    connection.close()


class Memory(DataSource):
    """A Spark data source that yields the three columns, and any number of rows, from memory."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> str:
        return THREE

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return MemoryReader(int(self.options["rows"]), int(self.options["parts"]))


class MemoryReader(DataSourceReader):
    """A reader that yields one Arrow batch repeatedly, as large as the batches of a topic."""

    def __init__(self, rows: int, parts: int) -> None:
        self._rows = rows
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        del partition
        numbers = pa.array(range(ARROW_ROWS), pa.int64())
        payload = pa.array([bytes(PAYLOAD_BYTES)] * ARROW_ROWS, pa.binary())
        times = numbers.cast(pa.timestamp("us", "UTC"))
        schema = arrow_schema([(name, False) for name in ("offset", "deliver_at", "payload")])
        batch = pa.record_batch([numbers, times, payload], schema=schema)
        for _ in range(self._rows // self._parts // ARROW_ROWS):
            yield batch


def session(jar: str | None, java_options: str | None = None) -> Any:
    from pyspark.sql import SparkSession

    provide_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "2g")
    if jar is not None:
        builder = builder.config("spark.jars", jar)
    if java_options is not None:
        builder = builder.config("spark.driver.extraJavaOptions", java_options)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(
    name: str, frame: Callable[[], Any], messages: int, runs: int, server: MysqlServer
) -> float:
    """Read the DataFrame that ``frame`` returns several times, and print the figures.

    Returns:
      The median rate, in rows a second.
    """
    found = []
    before: dict[str, float] = {}
    read_bytes = 0
    for number in range(runs + 1):
        if number == 1:
            before, read_bytes = processor_time(), server.read_bytes()
        began_s = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        found.append(messages / (time.perf_counter() - began_s))
    rate = statistics.median(found[1:])
    each = ", ".join(f"{one:,.0f}" for one in found[1:])
    times = ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in spent(before).items())
    print(f"{name:40} {rate:>12,.0f} rows/s  ({each})")
    print(f"{'':40} processor seconds of {runs} runs: {times}")
    read_mb = (server.read_bytes() - read_bytes) / runs / 1e6
    print(f"{'':40} from the database's disk: {read_mb:,.0f} MB each", flush=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--jdbc-messages", type=int, help="--messages if not given")
    parser.add_argument("--jdbc-jar", default=JDBC_JAR)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--java-options", help="options of Spark's Java, such as those in docs/spark-options.md"
    )
    add_options(parser)
    options = parser.parse_args()
    jdbc_messages = options.jdbc_messages or options.messages
    counts = (options.messages, jdbc_messages)
    if any(count % ARROW_ROWS or count <= 0 for count in counts):
        raise InvalidRequest(
            f"--messages and --jdbc-messages must be positive multiples of {ARROW_ROWS}"
        )
    jar = options.jdbc_jar if Path(options.jdbc_jar).is_file() else None
    with database(options) as server, tempfile.TemporaryDirectory() as directory:
        url = server.url("log")
        began_s = time.perf_counter()
        with broker_process(Path(directory) / "data", url) as broker:
            trio.run(publish, broker.url, options.messages)
            broker.stop()
        print(f"published in {time.perf_counter() - began_s:.0f} s", flush=True)
        spark = session(jar, options.java_options)
        source = spark.read.format("escapement").option("url", url).option("topic", TOPIC)
        three = source.schema(THREE).load()
        assert three.count() == options.messages
        parts = three.rdd.getNumPartitions()
        how = (options.runs, server)
        rate = measure("offset, time, payload", lambda: three, options.messages, *how)
        source = spark.read.format("escapement").option("url", url).option("topic", TOPIC)
        measure("all columns", source.load, options.messages, *how)
        spark.dataSource.register(Memory)
        memory = spark.read.format("memory").option("rows", options.messages)
        memory = memory.option("parts", parts)
        best = measure("the three out of memory", memory.load, options.messages, *how)
        print(f"the topic is read at {rate / best:.2f} of that rate")
        if jar is None:
            print(f"no JDBC: {options.jdbc_jar} does not exist (apt-get install libmariadb-java)")
            return
        engine = open_engine(server.url("rows"), Path(directory))
        fill_table(engine, jdbc_messages)
        table = (
            spark.read.format("jdbc")
            .option(
                "url",
                f"jdbc:mysql://127.0.0.1:{server.port}/rows?sessionVariables=sql_mode=ANSI_QUOTES",
            )
            .option("driver", "org.mariadb.jdbc.Driver")
            .option("user", "root")
            .option("dbtable", "messages")
            .option("fetchsize", str(FETCH_ROWS))
            .option("partitionColumn", "id")
            .option("lowerBound", "0")
            .option("upperBound", str(jdbc_messages))
            .option("numPartitions", str(parts))
        )
        name = f"JDBC, {jdbc_messages:,} messages"
        theirs = measure(name, table.load, jdbc_messages, *how)
        print(f"the topic is read {rate / theirs:.1f} times as fast")
        spark.stop()


if __name__ == "__main__":
    main()
