"""Tests of writing DataFrames as scheduled messages, on real Spark and real MariaDB or MySQL."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from reaper import task_workers

from escapement.errors import InvalidRequest
from escapement.pipeline.options import Options
from escapement.pipeline.sink import bulk_write
from escapement.pipeline.sink.writer import BatchWriter, StagedPart, StreamWriter
from escapement.pipeline.source.source import EscapementSource
from escapement.storage import schema
from escapement.storage.catalog import catalog
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.inbox import inbox, job
from escapement.storage.inbox.entry import decode_inbox_entry
from escapement.storage.inbox.job import JobState
from support.storage.staged_jobs import take_out

ROWS = 100_000
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
SCHEMA = "payload string, deliver_at timestamp, topic string, key string, priority int"


class Log:
    """A log with topics shop/eu/a and shop/eu/b."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self.connection: Connection = engine.connect()
        space = catalog.create_namespace(self.connection, "shop", "eu", 0)
        for name in ("a", "b"):
            catalog.create_topic(self.connection, space.id, name, 0)

    def write(self, rows: DataFrame, **options: str) -> None:
        writer = rows.write.format("escapement").option("url", self.url)
        writer.options(**options).mode("append").save()

    def take(self) -> dict[str, list[tuple[bytes, bytes, int, int, bytes]]]:
        """Take all visible messages out of the inbox: payload, key, priority, time, properties."""
        found: dict[str, list[tuple[bytes, bytes, int, int, bytes]]] = {}
        while targets := inbox.occupied(self.connection, 0, 9):
            for inbox_target in targets:
                step = inbox.read_staged_batches(self.connection, inbox_target.id, 8 << 20)
                for one in step.inbox_entries:
                    batch, times, *_ = decode_inbox_entry(one.data)
                    none = [b""] * len(batch)
                    absent = np.full(len(batch), 50, np.uint8)
                    columns = (
                        batch.payloads.to_list(),
                        none if batch.keys is None else batch.keys.to_list(),
                        (absent if batch.priorities is None else batch.priorities).tolist(),
                        [-1] * len(batch) if times.at_ms is None else times.at_ms.tolist(),
                        none if batch.properties is None else batch.properties.to_list(),
                    )
                    found.setdefault(inbox_target.target, []).extend(zip(*columns, strict=True))
                take_out(self.engine, self.connection, step)
        return found

    def jobs(self) -> list[JobState]:
        return job.states(self.connection, 99)

    def staged_batches(self) -> int:
        ((count,),) = self.connection.execute("SELECT COUNT(*) FROM staged_batches").rows
        return int(count)

    def attempts(self) -> int:
        """Return the number of attempts with staged batches."""
        ((count,),) = self.connection.execute(
            "SELECT COUNT(DISTINCT attempt) FROM staged_batches"
        ).rows
        return int(count)


@pytest.fixture(scope="module")
def log_of_module(mysql_url_of_module: str) -> Iterator[Log]:
    engine = MysqlEngine(MysqlAddress.parse(mysql_url_of_module))
    schema.migrate(engine)
    made = Log(mysql_url_of_module, engine)
    yield made
    made.connection.close()
    engine.close()


@pytest.fixture
def log(log_of_module: Log) -> Log:
    """The log without any jobs."""
    for table in ("jobs", "staged_batches", "inbox", "inbox_targets"):
        log_of_module.connection.execute(f"DELETE FROM {table}")
    return log_of_module


def failing_once(marker: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a pass-through whose first task fails at its end, after all rows are staged."""
    at = str(marker)

    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        try:
            Path(at).touch(exist_ok=False)
        except FileExistsError:
            return
        raise RuntimeError("the first attempt of a task")

    return pass_through


def swollen_until_gone(
    held: Path,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a step that makes a megabyte of each line, and ends once ``held`` is deleted.

    The size makes each task stage rows before its end.
    """
    at = str(held)

    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for line in batch.column(0).to_pylist():
                payload = pa.array([line.encode() + os.urandom(1 << 20)])
                yield pa.RecordBatch.from_arrays([payload], ["payload"])
        while Path(at).exists():
            time.sleep(0.05)

    return pass_through


def test_rows_are_scheduled_once_when_a_task_fails_after_staging(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """B7."""
    number = F.col("id")
    rows = spark.range(ROWS, numPartitions=3).select(
        F.concat(F.lit("message "), number.cast("string")).alias("payload"),
        F.timestamp_seconds(F.lit(BEGIN.timestamp()) + number / 1000).alias("deliver_at"),
        F.when(number % 2 == 0, "shop/eu/a").alias("topic"),
        F.when(number % 3 == 0, number.cast("string")).alias("key"),
        (number % 256).cast("int").alias("priority"),
        F.when(number % 5 == 0, F.create_map(F.lit("n"), number.cast("string"))).alias(
            "properties"
        ),
    )
    schema = f"{SCHEMA}, properties map<string,string>"
    flaky = rows.mapInArrow(failing_once(tmp_path / "failed"), schema)
    log.write(flaky, topic="shop/eu/b", report=str(tmp_path / "report"))
    assert (tmp_path / "failed").exists()
    begin_ms = round(BEGIN.timestamp() * 1000)
    wanted: dict[str, list[tuple[bytes, bytes, int, int, bytes]]] = {
        f"shop/eu/{'ab'[odd]}": [
            (
                b"message %d" % n,
                b"%d" % n if n % 3 == 0 else b"",
                n % 256,
                begin_ms + n,
                msgpack.packb({"n": str(n)}) if n % 5 == 0 else b"",
            )
            for n in range(odd, ROWS, 2)
        ]
        for odd in (0, 1)
    }
    found = log.take()
    assert {topic: len(messages) for topic, messages in found.items()} == {
        "shop/eu/a": ROWS // 2,
        "shop/eu/b": ROWS // 2,
    }
    assert {topic: sorted(messages) for topic, messages in found.items()} == {
        topic: sorted(messages) for topic, messages in wanted.items()
    }
    (state,) = log.jobs()
    assert (state.messages, state.waiting) == (ROWS, 0)
    assert '"messages": 100000' in (tmp_path / "report").read_text()


def test_failed_write_adds_nothing_and_deletes_its_staged_rows(
    spark: SparkSession, log: Log
) -> None:
    """B7: one task refuses a row in each attempt, after another task has staged rows."""
    rows = spark.range(20, numPartitions=2).select(
        F.col("id").cast("string").alias("payload"),
        F.when(F.col("id") < 19, "shop/eu/a").otherwise("shop/eu/nowhere").alias("topic"),
    )
    with pytest.raises(PySparkException, match="shop/eu/nowhere does not exist"):
        log.write(rows)
    assert log.take() == {}
    assert log.staged_batches() == 0
    assert log.jobs()[0].given_up_at_ms is not None


def test_time_that_spark_cannot_parse_fails_the_write_instead_of_sending_at_once(
    spark: SparkSession, log: Log
) -> None:
    """B7: the column is null for such a time."""
    rows = spark.range(20, numPartitions=2).select(
        F.lit("secret").alias("payload"),
        F.concat(F.lit("c-"), "id").alias("key"),
        F.expr("try_to_timestamp(if(id = 15, '31.03.2030', '2030-03-31'))").alias("deliver_at"),
    )
    why = r"row 6 of partition 1, with the key 'c-15'\) whose deliver_at is null"
    with pytest.raises(PySparkException, match=why) as failed:
        log.write(rows, topic="shop/eu/a")
    assert "secret" not in str(failed.value)
    # The other partition may have staged its part after the failure. It is never sent.
    assert log.take() == {}
    assert log.jobs()[0].given_up_at_ms is not None


def test_a_repeated_job_adds_nothing(spark: SparkSession, log: Log) -> None:
    """B7: the job has the same id, and its delays count from the same instant."""
    rows = spark.range(3).selectExpr("cast(id as string) payload", "interval 5 minutes delay")
    before = datetime.now(UTC)
    for _ in range(2):
        log.write(rows, topic="shop/eu/a", jobId="nightly")
    found = log.take()["shop/eu/a"]
    assert sorted(payload for payload, *_ in found) == [b"0", b"1", b"2"]
    (at_ms,) = {message[3] for message in found}
    delay = datetime.fromtimestamp(at_ms / 1000, UTC) - before
    assert timedelta(minutes=5, seconds=-1) < delay < timedelta(minutes=6)


def test_unsupported_writes_are_refused_before_a_task_runs(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """B7."""
    rows = spark.range(3).selectExpr("cast(id as string) payload")

    def refused(why: str, rows: DataFrame, mode: str = "append", **options: str) -> None:
        writer = rows.write.format("escapement").options(**options).mode(mode)
        with pytest.raises(PySparkException, match=why):
            writer.save()

    here = {"url": log.url, "topic": "shop/eu/a"}
    refused('mode\\("append"\\)', rows, "overwrite", **here)
    for mode in ("errorifexists", "ignore"):
        refused("UNSUPPORTED_DATA_SOURCE_SAVE_MODE", rows, mode, **here)
    refused("MySQL or MariaDB", rows, data=str(tmp_path), topic="shop/eu/a")
    refused("two columns 'payload'", rows.selectExpr("payload", "payload", "'k' key"), **here)
    lines = spark.readStream.format("rate").load().selectExpr("cast(value as string) payload")
    writer = lines.writeStream.format("escapement").options(**here).outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="does not support Update mode"):
        writer.start().awaitTermination(60)
    assert log.jobs() == []


def test_a_stream_in_complete_mode_is_refused(log: Log) -> None:
    """B7: in this mode each batch would replace the messages of earlier batches."""
    source = EscapementSource({"url": log.url, "topic": "shop/eu/a"})
    schema = StructType().add("payload", "binary")
    with pytest.raises(InvalidRequest, match='outputMode\\("append"\\)'):
        source.streamWriter(schema, overwrite=True)
    source.streamWriter(schema, overwrite=False)


def test_each_write_and_each_nonempty_stream_batch_prints_one_line(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    """B7: calls the writer as Spark does in the driver."""
    options = Options({"url": log.url, "topic": "shop/eu/a"})
    rows = pa.RecordBatch.from_pydict({"payload": pa.array([b"1", b"2"])})
    batch = BatchWriter(options, StructType().add("payload", "binary"), False)
    batch.commit([StagedPart(bulk_write.write_part(batch._plan, 0, [rows]))])
    (said,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"escapement: job job/.*: 2 messages .* for 1 topic committed in .*", said)
    for number, given in ((7, [rows]), (7, [rows]), (8, [])):
        # Spark sends one writer to the tasks, and commits with another.
        of_tasks, of_commit = (
            StreamWriter(options, StructType().add("payload", "binary"), False) for _ in range(2)
        )
        plan = replace(of_tasks._plan.of_batch("query/q", number), began_s=time.time() - 30)
        of_commit.commit([StagedPart(bulk_write.write_part(plan, 0, given))], number)
    first, again = capsys.readouterr().err.splitlines()
    said = r"escapement: job query/q, version 7: 2 messages \(.* committed in (.*) s, 0 a second"
    found = re.fullmatch(said, first)
    assert found
    assert float(found[1]) >= 30, "the time counts from the beginning of the batch"
    assert again == "escapement: job query/q, version 7: committed before; nothing was added"


def test_stream_adds_a_batch_once_when_spark_repeats_it(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """B7: the driver dies after our commit and before Spark records its own.

    The delays of all tasks of a batch count from one instant before the batch.
    """
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def run() -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        query = (
            lines.repartition(2)
            .selectExpr("value payload", "cast(60000 as bigint) delay_ms")
            .writeStream.format("escapement")
            .options(url=log.url, topic="shop/eu/a")
            .option("checkpointLocation", str(checkpoint))
            .queryName("lines")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert query.exception() is None

    (source / "0.txt").write_text("0a\n0b\n")
    run()
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink()
    (source / "1.txt").write_text("1a\n1b\n")
    run()
    found = log.take()["shop/eu/a"]
    assert sorted(payload for payload, *_ in found) == [b"0a", b"0b", b"1a", b"1b"]
    entered_ms = sorted(state.created_at_ms for state in log.jobs())
    began_ms = sorted({(message[3] - 60_000, message[0][:1]) for message in found})
    assert len(began_ms) == len(entered_ms) == 2
    for before_ms, (at_ms, _), after_ms in zip(
        [0, *entered_ms], began_ms, entered_ms, strict=False
    ):
        assert before_ms < at_ms <= after_ms


def test_stream_batch_with_killed_tasks_is_added_once_when_repeated(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """B7: each attempt of a task is killed after it has staged rows."""
    # End idle workers, so that each attempt gets a new one.
    for worker in task_workers(os.getpid()):
        os.kill(worker, signal.SIGKILL)
    while task_workers(os.getpid()):
        time.sleep(0.05)
    held = tmp_path / "held"
    held.touch()
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "lines.txt").write_text("".join(f"{n}\n" for n in range(8)))
    lines = spark.readStream.format("text").load(str(tmp_path / "source"))
    writer = lines.mapInArrow(swollen_until_gone(held), "payload binary").writeStream
    writer = writer.format("escapement").options(url=log.url, topic="shop/eu/a")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1)
    try:
        query = writer.trigger(availableNow=True).start()
        for tries in range(1, 4):
            while log.attempts() < tries:
                assert query.isActive
                time.sleep(0.05)
            for worker in task_workers(os.getpid()):
                os.kill(worker, signal.SIGKILL)
        with pytest.raises(StreamingQueryException, match="crashed"):
            query.awaitTermination(60)
        assert (log.take(), log.staged_batches()) == ({}, 0)
        held.unlink()
        assert writer.trigger(availableNow=True).start().awaitTermination(60)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    found = log.take()["shop/eu/a"]
    assert sorted(payload[:1] for payload, *_ in found) == [b"%d" % n for n in range(8)]


def test_foreach_batch_function_writes_the_batches_of_a_stream(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """B7: Spark calls the function from a thread, with the number of the batch."""
    (tmp_path / "lines.txt").write_text("a\nb\n")

    def schedule(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            log.write(batch, topic="shop/eu/a", txnAppId="lines", txnVersion=str(number))

    lines = spark.readStream.format("text").load(str(tmp_path)).selectExpr("value payload")
    writer = lines.writeStream.foreachBatch(schedule).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert sorted(payload for payload, *_ in log.take()["shop/eu/a"]) == [b"a", b"b"]
