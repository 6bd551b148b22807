"""Tests of the forecast job."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from escapement.cli.main import run as command
from escapement.cli.pipeline.source import refusals
from escapement.errors import InvalidRequest, StorageUnavailable
from escapement.pipeline.forecast import ForecastConfig, run
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from support.storage.eventful_log import DAY_MS, HOUR_MS, TOPIC, Expected, fill


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a log with many kinds of events."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module", autouse=True)
def expected(data: Path) -> list[Expected]:
    """The expected messages of the log."""
    engine = SqliteEngine(data / FILE_NAME)
    try:
        return fill(engine)
    finally:
        engine.close()


def test_forecast_counts_live_messages_that_are_not_yet_due(
    spark: SparkSession,
    data: Path,
    expected: list[Expected],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B6, B7: rescheduled and relocated messages count at their current due times.

    The clock of the database decides which messages are due, not the clock of the driver.
    """
    began_ms = int(time.time() * 1000) - HOUR_MS // 2
    ahead_ns = time.time_ns() + 3 * HOUR_MS * 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: ahead_ns)
    out = str(tmp_path / "forecast")
    source = {"data": str(data), "topic": TOPIC}
    config = ForecastConfig(source, HOUR_MS, 300 * DAY_MS, began_ms, capacity=2, output=out)
    found = run(spark, config)
    spans = found.spans
    coming = [one for one in expected if one.state == "to_be_fired"]
    assert len(coming) > 190
    wanted = Counter((one.deliver_ms - spans.first_ms) // HOUR_MS for one in coming)
    assert list(found.counts) == [TOPIC]
    counts = found.counts[TOPIC].tolist()
    assert {span: count for span, count in enumerate(counts) if count} == wanted
    assert found.total.tolist() == counts
    # The first span has begun, and the last is only partly covered.
    assert found.capacities is not None
    assert found.capacities[1:-1] == [7200] * (spans.count - 2)
    assert found.capacities[0] < 7200 > found.capacities[-1]
    rows = spark.read.parquet(out).selectExpr(
        "topic", "unix_millis(begins_at) AS begins_ms", "messages", "capacity"
    )
    assert sorted(tuple(row) for row in rows.collect()) == [
        (TOPIC, spans.begins_ms(span), count, found.capacities[span])
        for span, count in sorted(wanted.items())
    ]
    with pytest.raises(InvalidRequest, match="already exists"):
        run(spark, config)


def test_forecast_without_due_messages_is_empty(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    """B6."""
    out = str(tmp_path / "forecast")
    found = run(spark, ForecastConfig({"data": str(data), "topic": TOPIC}, 1000, 5000, output=out))
    assert not found.counts
    assert not found.total.any()
    assert spark.read.parquet(out).count() == 0


def test_forecast_command_draws_the_messages_and_the_capacity(
    spark: SparkSession, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B6, B7: in the existing Spark session."""
    words = ["pipeline", "forecast", TOPIC, "--data", str(data), "--for", "300d", "--by", "day"]
    assert command([*words, "--capacity", "1"]) == 0
    drawn = capsys.readouterr().out
    assert "192 messages to fall due in this time" in drawn
    assert "no span is over the capacity" in drawn
    assert command([*words, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total"], sum(found["topics"][TOPIC])) == (192, 192)
    words[2] = "shop/eu/nothing"
    assert command(words) == 1
    assert capsys.readouterr().err == "escapement: topic shop/eu/nothing does not exist\n"
    assert spark.range(1).count() == 1, "the existing session was stopped"


def test_forecast_refuses_invalid_options(spark: SparkSession, data: Path) -> None:
    """B7."""
    with pytest.raises(PySparkException, match="unknown option 'tpic'"):
        run(spark, ForecastConfig({"data": str(data), "tpic": TOPIC}))
    with pytest.raises(InvalidRequest, match="at most 20000 spans"):
        run(spark, ForecastConfig({"data": str(data), "topic": TOPIC}, 1, DAY_MS))
    with pytest.raises(StorageUnavailable, match="Connection refused"):
        run(spark, ForecastConfig({"url": "mysql://127.0.0.1:1/log", "topic": TOPIC}))


def test_error_of_a_task_is_reported_in_one_line(spark: SparkSession) -> None:
    """B7: for any exception into which Spark turns it."""

    def refuse(number: int) -> int:
        raise StorageUnavailable("the database is away")

    with pytest.raises(InvalidRequest, match=r"^the database is away$"), refusals():
        spark.sparkContext.parallelize([1], 1).map(refuse).collect()
