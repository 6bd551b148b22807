"""Tests of the audit job during the work of a broker."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Final

import trio
from pyspark.sql import SparkSession

import escapement
from escapement.errors import InvalidRequest
from escapement.pipeline.audit import Audit, AuditConfig, run
from support.processes.broker import PATIENT, broker_process

TOPIC: Final = "shop/eu/busy"
BATCH: Final = 200
CHECKPOINT_S: Final = 0.1
# Some messages fall due during the test, most after it.
DELAYS: Final = [None if n % 3 == 0 else timedelta(seconds=n / 20) for n in range(BATCH)]


async def test_audit_of_a_busy_broker_finds_nothing(
    spark: SparkSession, mysql_url: str, tmp_path: Path
) -> None:
    """B7: during checkpoints and new subscriptions with a backlog, and after a kill."""
    limits = {"checkpoint_interval_s": CHECKPOINT_S}
    with broker_process(tmp_path / "data", mysql_url, limits=limits) as process:
        config = AuditConfig({"url": mysql_url}, index=str(process.data))
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await broker.admin("namespaces.create", namespace="shop/eu")
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="s")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, broker)
                nursery.start_soon(consume, broker)
                for subscription in ("a", "b", "c"):
                    found = await undisturbed(spark, config)
                    assert found.findings == []
                    where = {"topic": TOPIC, "subscription": subscription, "position": "earliest"}
                    await broker.admin("subscriptions.create", **where)
                    # Let checkpoints add to the index, also on a fast machine.
                    await trio.sleep(3 * CHECKPOINT_S)
                nursery.cancel_scope.cancel()
        process.kill()
        found = run(spark, config)
        assert found.findings == []
        (topic,) = found.topics
        assert topic.indexed == topic.pending > 0


async def undisturbed(spark: SparkSession, config: AuditConfig) -> Audit:
    """Repeat the audit until the broker changes nothing during it."""
    while True:
        try:
            return await trio.to_thread.run_sync(run, spark, config)
        except InvalidRequest as error:
            if "changed during each of" not in str(error):
                raise


async def publish(broker: escapement.Broker) -> None:
    async with await broker.producer(TOPIC) as producer:
        for batch in count():
            await producer.send_many([b"x"] * BATCH, delay=DELAYS)
            first = BATCH * batch + 50
            await broker.cancel(list(range(first, first + 10)), topic=TOPIC)
            moved = list(range(first + 5, first + 20))
            await broker.reschedule(moved, topic=TOPIC, delay=timedelta(seconds=3))
            await trio.sleep(0.05)  # leave time for other work


async def consume(broker: escapement.Broker) -> None:
    async with broker.consumer(TOPIC, "s") as inbox:
        async for message in inbox:
            if message.offset % 7:
                await inbox.ack(message)
