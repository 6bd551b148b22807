"""Rows a second from a DataFrame to the commit, and from the commit to a topic's log.

    python benchmarks/spark_write.py [--rows 10000000] [--runs 2] [--rate N] [--log URL]
                                     [--json FILE]

Runs a broker, Spark with two tasks, and (without a URL) a private MariaDB or MySQL server with
its default durability, all on this machine. Spark reads the rows, 100 characters each, from
Parquet. Two more runs give the bounds: one only reads the rows, and one passes them to Python and
drops them there. The time to the commit includes Spark's planning.

After the commit, the broker *adopts* the rows: it moves them to the topic's log. Meanwhile, and
once before all runs, `escapement bench lateness` measures another topic of the same broker. Prints
the median, lowest and highest rates, and the processor seconds of a run by kind of process. With
``--rate`` the topic has this limit of its publish rate, which adoption obeys. Two runs of ten
million rows take some three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from database import add_options, database

import escapement
from escapement.pipeline.jvm import provide_java
from support.processes.broker import PATIENT, BrokerProcess, broker_process
from support.processes.processor_time import processor_time, spent

TOPIC: Final = "bench/spark/bulk"
TASKS: Final = 2
# After this many rows, Spark has generated its Java code and started its Python processes.
WARM_ROWS: Final = 20_000
# The time between two requests for the progress. Each makes the database count rows.
POLL_S: Final = 0.25
# The expected rate of adoption, which determines how long another topic is measured meanwhile.
LATENESS_ROWS_PER_S: Final = 500_000


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    provide_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS}]").appName("benchmark")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


def make(spark: SparkSession, rows: int, file: Path) -> None:
    """Write rows to Parquet: payloads of 100 hexadecimal digits, due in an hour."""
    digits = F.concat(F.sha2(F.col("id").cast("string"), 256), F.sha2(F.lit("x"), 256))
    made = spark.range(rows, numPartitions=TASKS).select(
        F.substring(digits, 1, 100).alias("payload"),
        F.expr("current_timestamp() + INTERVAL 1 HOUR").alias("deliver_at"),
    )
    made.write.mode("overwrite").option("compression", "none").parquet(str(file))


def rows_of(spark: SparkSession, file: Path) -> DataFrame:
    return spark.read.parquet(str(file)).coalesce(TASKS)


def write(spark: SparkSession, file: Path, url: str) -> None:
    """Write the rows to the topic as a bulk job, and return after its commit."""
    writer = rows_of(spark, file).write.format("escapement").options(url=url, topic=TOPIC)
    writer.option("createTopics", "true").mode("append").save()


def read(spark: SparkSession, file: Path) -> None:
    """Read the rows and write nothing."""
    rows_of(spark, file).write.format("noop").mode("overwrite").save()


def drop(spark: SparkSession, file: Path) -> None:
    """Pass the rows to Python, as for a data source that writes them, and drop them there."""

    def take(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch([pa.array([rows])], names=["rows"])

    handed = rows_of(spark, file).mapInArrow(take, "rows BIGINT")
    handed.write.format("noop").mode("overwrite").save()


def seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


async def adopted(process: BrokerProcess) -> tuple[int, float]:
    """Wait until the newest job is adopted.

    Returns:
      The number of its messages, and how many of them the log adopted a second.
    """
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        began: tuple[float, int] | None = None
        while True:
            row = (await broker.admin("jobs.list"))[0]
            now_s = time.perf_counter()
            if began is None and row["adopted"]:
                began = (now_s, row["adopted"])
            if row["state"] == "adopted":
                assert began is not None
                seconds = max(now_s - began[0], 1e-3)
                return row["messages"], (row["messages"] - began[1]) / seconds
            await trio.sleep(POLL_S)


async def hold_back(process: BrokerProcess, rate: int) -> None:
    """Limit the publish rate of the topic to ``rate`` messages a second; 0 for no limit."""
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        await broker.admin("topics.update", topic=TOPIC, policy={"max_publish_rate": rate})


def lateness(process: BrokerProcess, seconds: float) -> subprocess.Popen[str]:
    """Start a process that measures the lateness of another topic of this broker."""
    command = [sys.executable, "-m", "escapement", "bench", "lateness", "--broker", process.url]
    command += ["--rate", "5000", "--seconds", f"{seconds}", "--runs", "1", "-o", "json"]
    # Linux divides the processors among sessions first. In Spark's session, the process would wait
    # for Spark.
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def figures_of(measured: subprocess.Popen[str]) -> dict[str, Any]:
    said, _ = measured.communicate()
    found = json.loads(said)
    return {name: found[name] for name in ("messages", "lateness_ms", "lost", "early")}


def measure(
    spark: SparkSession,
    process: BrokerProcess,
    url: str,
    rows: int,
    runs: int,
    rate: int,
    file: Path,
) -> dict[str, Any]:
    make(spark, WARM_ROWS, file)
    write(spark, file, url)
    drop(spark, file)
    trio.run(adopted, process)
    trio.run(hold_back, process, rate)
    make(spark, rows, file)
    read_s = seconds_of(lambda: read(spark, file))
    dropped_s = seconds_of(lambda: drop(spark, file))
    seconds = max(rows / LATENESS_ROWS_PER_S, 3.0)
    quiet = figures_of(lateness(process, seconds))
    figures: list[dict[str, Any]] = []
    for _ in range(runs):
        figures.append(one_run(spark, process, url, rows, file, seconds))
        print(json.dumps(figures[-1]), file=sys.stderr, flush=True)
    return {
        "rows": rows,
        "read_from_parquet_per_second": round(rows / read_s),
        "dropped_in_python_per_second": round(rows / dropped_s),
        "committed_per_second": spread([run["committed_per_second"] for run in figures]),
        "adopted_per_second": spread([run["adopted_per_second"] for run in figures]),
        "another_topic_before": quiet,
        "runs": figures,
    }


def one_run(
    spark: SparkSession, process: BrokerProcess, url: str, rows: int, file: Path, seconds: float
) -> dict[str, Any]:
    before = processor_time()
    written_s = seconds_of(lambda: write(spark, file, url))
    writing = spent(before)
    before = processor_time()
    beside = lateness(process, seconds)
    messages, rate = trio.run(adopted, process)
    adopting = spent(before)
    assert messages == rows
    return {
        "committed_per_second": round(rows / written_s),
        "adopted_per_second": round(rate),
        "another_topic_beside": figures_of(beside),
        "processor_seconds": {"writing": writing, "adopting": adopting},
        "load": round(os.getloadavg()[0], 1),
    }


def spread(rates: list[int]) -> dict[str, int]:
    return {
        "median": round(statistics.median(rates)),
        "lowest": min(rates),
        "highest": max(rates),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--rate", type=int, default=0, help="messages a second; 0 for no limit")
    add_options(parser)
    parser.add_argument("--log", help="URL of an empty database on MariaDB or MySQL")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, spark_session() as spark:

        def run(url: str) -> dict[str, Any]:
            with broker_process(Path(directory) / "data", url) as process:
                file = Path(directory) / "rows"
                return measure(spark, process, url, given.rows, given.runs, given.rate, file)

        if given.log:
            figures = run(given.log)
        else:
            with database(given) as server:
                server.admin("CREATE DATABASE bench CHARACTER SET utf8mb4")
                figures = run(server.url("bench"))
    text = json.dumps(figures, indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
