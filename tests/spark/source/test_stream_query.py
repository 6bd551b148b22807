"""Tests of Spark streaming queries on a topic."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.mysql.engine import MysqlEngine
from support.storage.eventful_log import TOPIC, fill, more


def test_streaming_query_continues_after_its_checkpoint(
    spark: SparkSession, mysql_url: str, tmp_path: Path
) -> None:
    """B7: with Trigger.AvailableNow, in bounded batches. Each message arrives once."""
    engine = MysqlEngine(MysqlAddress.parse(mysql_url))
    fill(engine)
    source = spark.readStream.format("escapement").option("url", mysql_url)
    source = source.option("topic", TOPIC).option("startingOffsets", "earliest")
    frame = source.option("maxOffsetsPerTrigger", "200").schema("offset BIGINT, payload BINARY")

    def run() -> list[int]:
        sink = frame.load().writeStream.format("parquet").trigger(availableNow=True)
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
            str(tmp_path / "out")
        )
        query.awaitTermination()
        return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]

    sizes = run()
    assert sum(sizes) == 302
    assert len(sizes) > 1
    assert max(sizes) <= 200
    more(engine, 100)
    assert run() == [100]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.offset for row in rows) == [50, 150, *range(200, 600)]
    assert {bytes(row.payload) for row in rows if row.offset >= 500} == {
        b"more %d" % n for n in range(100)
    }
    engine.close()
