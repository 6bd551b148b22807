"""Tests of the lag job, which reports lateness, time to acknowledgement and attempts."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

import escapement
from escapement import testing
from escapement.broker.broker import BrokerConfig
from escapement.cli.main import run as command
from escapement.errors import InvalidRequest, NotFound
from escapement.pipeline.lag import Lag, LagConfig, run
from escapement.storage.engine.base import Engine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine
from escapement.testing import World, arrived

HOUR_MS = 3_600_000
ORDERS, REFUNDS = "shop/eu/orders", "shop/eu/refunds"


@pytest.fixture(scope="module")
def began_ms() -> int:
    """The beginning of the second to last whole hour."""
    now_ms = int(time.time() * 1000)
    return now_ms - now_ms % HOUR_MS - 2 * HOUR_MS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, began_ms: int) -> Path:
    """A directory with the log of a broker that has delivered messages in two hours."""
    directory = tmp_path_factory.mktemp("data")
    engine = SqliteEngine(directory / FILE_NAME)
    try:
        testing.run(_live, engine, began_ms)
    finally:
        engine.close()
    return directory


async def _live(engine: Engine, began_ms: int) -> None:
    config = BrokerConfig(ack_wait_ms=10**9, seed=0)
    begun = testing.start(config=config, engine=engine, start_ms=began_ms)
    async with begun as world, world.connect() as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        settings = {"tick_ms": 1, "granularity_ms": 300_000}
        await broker.admin("namespaces.enable_delayed_message", namespace="shop/eu", **settings)
        for topic in (ORDERS, REFUNDS):
            await broker.admin("subscriptions.create", topic=topic, subscription="billing")
        await _deliver(world, broker, ORDERS, 100)
        await world.checkpoint()
        await world.clock.advance(hours=1)
        await _deliver(world, broker, ORDERS, 10)
        await _deliver(world, broker, REFUNDS, 20, failing=5)


async def _deliver(
    world: World, broker: escapement.Broker, topic: str, count: int, failing: int = 0
) -> None:
    """Deliver messages 0 to ``count`` - 1 seconds late, and acknowledge them 20 ms later.

    The first ``failing`` of them are nacked and redelivered a minute later.
    """
    async with await broker.producer(topic) as producer:
        at = world.clock.now_ms() + 1000 * np.arange(1, count + 1)
        await producer.send_many([b"%d" % n for n in range(count)], at=at)
    await world.clock.advance(seconds=count)
    async with broker.consumer(topic, "billing") as inbox:
        offsets = [one.offset for one in await arrived(inbox)]
        assert len(offsets) == count
        await inbox.nack(offsets[:failing], delay=(1, "m"))
        await world.clock.advance(ms=20)
        await inbox.ack(offsets[failing:], durable=True)
        if failing:
            await world.clock.advance(ms=60_000 - 20)
            await inbox.ack([one.offset for one in await arrived(inbox)], durable=True)


def about(value: int) -> object:
    """Return a value that compares equal within the resolution of the lag."""
    return pytest.approx(value, rel=1 / 32)


def test_lag_is_reported_by_topic_subscription_and_hour(
    spark: SparkSession,
    data: Path,
    began_ms: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B6, B7: also from the journal for the last hour, and as Parquet.

    The clock of the driver is a day ahead. The clock of the database counts.
    """
    ahead_ns = time.time_ns() + 24 * HOUR_MS * 1_000_000
    monkeypatch.setattr(time, "time_ns", lambda: ahead_ns)
    out = str(tmp_path / "lag")
    config = LagConfig({"data": str(data)}, within_ms=5 * HOUR_MS, output=out)
    found = run(spark, config)
    names = [(one.topic, one.subscription, one.hour_at_ms) for one in found.hours]
    assert names == [
        (ORDERS, "billing", began_ms),
        (ORDERS, "billing", began_ms + HOUR_MS),
        (REFUNDS, "billing", began_ms + HOUR_MS),
    ]
    first, _, refunds = found.hours
    assert (first.acknowledged, first.unseen, first.redelivered) == (100, 0, 0)
    assert first.late_p50_ms == about(49_000)
    assert first.late_p90_ms == about(89_000)
    assert first.late_p99_ms == about(98_000)
    assert first.late_max_ms == about(99_000)
    assert (first.acked_after_p50_ms, first.acked_after_max_ms) == (20, 20)
    assert (first.attempts_mean, first.attempts_max) == (1.0, 1)
    assert first.late_again_p50_ms is None
    # The failed messages were the latest. Redeliveries count separately.
    assert (refunds.acknowledged, refunds.redelivered) == (20, 5)
    assert (refunds.attempts_mean, refunds.attempts_p50, refunds.attempts_max) == (1.25, 1, 2)
    assert refunds.late_max_ms == about(14_000)
    assert refunds.late_again_max_ms == about(79_000)
    assert (refunds.acked_after_p50_ms, refunds.acked_after_max_ms) == (20, 20)
    assert [(one.topic, one.acknowledged, one.hour_at_ms) for one in found.totals] == [
        (ORDERS, 110, None),
        (REFUNDS, 20, None),
    ]
    assert found.totals[0].late_p99_ms == about(98_000)
    read = spark.read.parquet(out)
    rows = read.selectExpr("unix_millis(hour_at) AS hour_at_ms", "*").orderBy("topic", "hour_at")
    for row, hour in zip(rows.collect(), found.hours, strict=True):
        assert {name: row[name] for name in Lag.__slots__} == asdict(hour)
    with pytest.raises(InvalidRequest, match="already exists"):
        run(spark, config)


def test_lag_is_limited_to_the_given_topics_and_hours(
    spark: SparkSession, data: Path, began_ms: int, tmp_path: Path
) -> None:
    """B7: only whole hours."""
    source = {"data": str(data)}
    found = run(spark, LagConfig(source, [REFUNDS, REFUNDS], 5 * HOUR_MS))
    assert [one.topic for one in found.totals] == [REFUNDS]
    within_ms = int(time.time() * 1000) - (began_ms + HOUR_MS)
    found = run(spark, LagConfig(source, within_ms=within_ms))
    assert [one.acknowledged for one in found.hours] == [10, 20]
    out = str(tmp_path / "nothing")
    assert not run(spark, LagConfig(source, within_ms=1, output=out)).totals
    assert spark.read.parquet(out).count() == 0
    with pytest.raises(NotFound, match="shop/eu/nothing does not exist"):
        run(spark, LagConfig(source, ["shop/eu/nothing"]))
    with pytest.raises(InvalidRequest, match="unknown option 'topic'"):
        run(spark, LagConfig({**source, "topic": ORDERS}))


def test_the_command_shows_lines_by_subscription_or_by_hour(
    spark: SparkSession, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B6, B7: in the existing Spark session."""
    words = ["pipeline", "lag", "--data", str(data), "--for", "5h"]
    assert command(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "late p99" in lines[0]
    assert lines[1].split()[:4] == [ORDERS, "billing", "110", "0"]
    assert command([*words, "--by", "hour", ORDERS]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert command([*words, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [len(found["hours"]), len(found["totals"])] == [3, 2]
    assert command([*words[:-1], "1ms"]) == 0
    assert capsys.readouterr().out == "nothing was acknowledged in this time\n"
