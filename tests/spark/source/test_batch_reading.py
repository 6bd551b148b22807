"""Tests of batch reads of topics as DataFrames."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from escapement.pipeline.arrow import arrow_schema
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from support.processes.process_list import command_lines
from support.storage.eventful_log import HOUR_MS, TOPIC, Expected, fill
from support.storage.forgotten_log import NAMES, open_forgotten_log

SECRET = "s3cr3t-of-the-log"


@pytest.fixture(scope="module")
def log(mysql_url_of_module: str) -> str:
    """The URL of a log with many kinds of events."""
    return mysql_url_of_module


@pytest.fixture(scope="module")
def expected(log: str) -> list[Expected]:
    """The expected messages of the log."""
    engine = MysqlEngine(MysqlAddress.parse(log))
    try:
        return fill(engine)
    finally:
        engine.close()


@pytest.fixture
def reader(spark: SparkSession, log: str, expected: list[Expected]) -> DataFrameReader:
    return spark.read.format("escapement").option("url", log).option("topic", TOPIC)


def found(frame: DataFrame) -> list[Expected]:
    """Return the rows of a read of all columns, by offset."""
    rows = []
    for row in frame.collect():
        assert row.topic == TOPIC
        rows.append(
            Expected(
                row.offset,
                _ms(row.deliver_at),
                _ms(row.published_at),
                None if row.key is None else bytes(row.key),
                row.properties,
                row.priority,
                bytes(row.payload),
                row.state,
                row.attempt,
            )
        )
    return sorted(rows, key=lambda row: row.offset)


def _ms(instant: datetime) -> int:
    return round(instant.replace(tzinfo=instant.tzinfo or UTC).timestamp() * 1000)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def test_each_message_is_read_once_with_its_current_state(
    reader: DataFrameReader, expected: list[Expected]
) -> None:
    """B7, V15: acknowledged, cancelled, retried, rescheduled and relocated messages."""
    assert found(reader.option("maxRecordsPerPartition", "100").load()) == expected


def test_archived_and_live_messages_are_one_table(
    spark: SparkSession, mysql_url: str, tmp_path: Path
) -> None:
    """N8, V15: every column has the value that the reader in plain Python returns."""
    with open_forgotten_log(mysql_url, tmp_path) as log:
        read = spark.read.format("escapement").options(**log.address, topic=TOPIC)
        came = sorted(read.load().collect(), key=lambda row: row.offset)
        schema = arrow_schema([(name, True) for name in NAMES])
        wanted = spark.createDataFrame(pa.Table.from_pylist(log.read(), schema=schema))
        assert came == wanted.collect()
        assert [row.offset for row in came] == list(range(320))
        live = [*range(150, 300, 15), *range(300, 320)]
        assert offsets(read.option("archived", "false").load()) == live


def test_only_the_columns_of_the_users_schema_are_read(
    reader: DataFrameReader, expected: list[Expected]
) -> None:
    """B7: column names ignore case, as elsewhere in Spark, also in filters."""
    cut = reader.option("maxRecordsPerPartition", "100")
    frame = cut.schema("Payload BINARY, OFFSET BIGINT").load()
    assert frame.columns == ["Payload", "OFFSET"]
    rows = frame.select("payload", "Offset").collect()
    assert {at: bytes(payload) for payload, at in rows} == {
        one.offset: one.payload for one in expected
    }
    assert frame.where("offset >= 250 AND offset < 320").rdd.getNumPartitions() == 1
    with pytest.raises(PySparkException, match="have no column 'body'"):
        reader.schema("body BINARY").load().count()
    with pytest.raises(PySparkException, match="the column offset is bigint, not string"):
        reader.schema("offset STRING").load().count()


def test_schema_says_which_columns_are_never_null(
    reader: DataFrameReader, expected: list[Expected]
) -> None:
    """B7: so Spark does not check each row of such a column."""
    frame = reader.load()
    assert {field.name for field in frame.schema if field.nullable} == {"key", "attempt"}
    assert frame.where("payload IS NULL").count() == 0
    assert frame.where("key IS NULL").count() == sum(one.key is None for one in expected)
    asked = reader.schema("offset BIGINT NOT NULL, key BINARY").load()
    assert [field.nullable for field in asked.schema] == [False, True]
    assert offsets(asked) == [one.offset for one in expected]


def test_filters_are_pushed_down_and_lose_no_rows(
    reader: DataFrameReader, expected: list[Expected]
) -> None:
    """B7."""
    now_ms = expected[-1].published_ms
    instant = f"timestamp_millis({now_ms + 2 * HOUR_MS})"
    frame = reader.load()
    for where, wanted in (
        ("offset >= 250 AND offset < 320", list(range(250, 320))),
        (f"deliver_at = {instant}", [310, 311, 312, 313, 314]),
        ("topic = 'other'", []),
        (f"topic = '{TOPIC}' AND state = 'cancelled'", list(range(300, 310))),
    ):
        assert offsets(frame.where(where)) == wanted, where
    # Tasks read only the given range of offsets.
    assert frame.where("offset >= 250 AND offset < 320").rdd.getNumPartitions() == 1


def test_read_works_without_filter_pushdown(spark: SparkSession, reader: DataFrameReader) -> None:
    """B7: by default, Spark does not push filters down."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert offsets(reader.load().where("offset = 311")) == [311]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_invalid_options_are_refused_before_a_task_runs(
    spark: SparkSession, reader: DataFrameReader
) -> None:
    """B7."""
    broken = spark.read.format("escapement").option("topic", TOPIC).option("startingOfsets", "3")
    with pytest.raises(PySparkException, match="unknown option 'startingofsets'"):
        broken.load().count()
    with pytest.raises(PySparkException, match="topic shop/eu/nothing does not exist"):
        reader.option("topic", "shop/eu/nothing").load().count()


def test_password_appears_in_no_plan_no_process_list_and_no_error(
    spark: SparkSession,
    log: str,
    mysql_server: Any,
    tmp_path: Path,
    expected: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """B7."""
    user, database = "reader_of_a_log", urlsplit(log).path.strip("/")
    mysql_server.admin(f"CREATE USER {user}@'%' IDENTIFIED BY '{SECRET}'")
    try:
        # Reading needs no other privilege.
        mysql_server.admin(f"GRANT SELECT ON {database}.* TO {user}@'%'")
        file = tmp_path / "password"
        file.write_text(SECRET)
        reader = spark.read.format("escapement").option("topic", TOPIC).option("user", user)
        reader = reader.option("url", log).option("passwordFile", str(file))
        frame = reader.load()
        assert frame.count() == len(expected)
        frame.explain("extended")
        shared = capsys.readouterr().out + str(frame) + frame._jdf.queryExecution().toString()
        assert "escapement" in shared
        assert SECRET not in shared
        processes = list(command_lines())
        assert any("org.apache.spark" in line for line in processes)
        assert not any(SECRET in line for line in processes)
        file.write_text(SECRET + "x")
        with pytest.raises(PySparkException, match="refuses this user") as refused:
            reader.load().count()
        assert SECRET not in str(refused.value)
    finally:
        mysql_server.admin(f"DROP USER {user}@'%'")


def test_sqlite_log_is_read_from_its_data_directory(spark: SparkSession, tmp_path: Path) -> None:
    """B7."""
    engine = SqliteEngine(tmp_path / FILE_NAME)
    try:
        expected = fill(engine)
        reader = spark.read.format("escapement").option("topic", TOPIC)
        assert found(reader.option("data", str(tmp_path)).load()) == expected
    finally:
        engine.close()
