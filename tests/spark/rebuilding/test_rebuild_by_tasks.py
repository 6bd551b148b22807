"""Tests of the rebuild job on Spark: tasks write segments, and the driver names them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import escapement
from escapement.cli.main import run as command
from escapement.errors import InvalidRequest
from escapement.message import Blobs, MessageBatch
from escapement.pipeline.audit import AuditConfig
from escapement.pipeline.audit import run as audit
from escapement.pipeline.directories.shared_directory import SharedDirectory
from escapement.pipeline.options import LogAddress
from escapement.pipeline.rebuild import RebuildConfig, run
from escapement.pipeline.rebuilding.filling import Progress
from escapement.pipeline.rebuilding.shuffle import Block, Work, Written, gather
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, IndexLimits
from escapement.storage.index.building import Building
from support.processes.broker import PATIENT, broker_process

TOPIC: Final = "shop/eu/reminders"
SOON, LATER = timedelta(seconds=2), timedelta(hours=1)
BATCHES, BATCH = 6, 200
# Delays of the messages of a batch, in turn: none, soon and later.
DELAYS: Final = [(None, SOON, LATER)[index % 3] for index in range(BATCH)]

Content = dict[tuple[int, int, int], tuple[bytes, bytes, bytes, int]]


def content_of(directory: Path) -> Content:
    """Return all messages of an index by topic and index key. No broker may use the index."""
    index = DelayedIndex.open(directory)
    found: Content = {}
    for topic_id in index.topics():
        due_ms, offsets = index.plan(topic_id, KEY_MIN, KEY_MAX, 10**6).read()
        batch = index.fetch(topic_id, due_ms, offsets).read()
        none = Blobs.empty(len(batch))
        columns = [(column or none).to_list() for column in (batch.keys, batch.properties)]
        priorities = np.full(len(batch), 50) if batch.priorities is None else batch.priorities
        rows = zip(batch.payloads.to_list(), *columns, priorities.tolist(), strict=True)
        names = zip(due_ms.tolist(), offsets.tolist(), strict=True)
        found.update({(topic_id, *name): row for name, row in zip(names, rows, strict=True)})
    return found


async def live(url: str) -> set[bytes]:
    """Publish to three topics, then acknowledge, cancel and reschedule. Return pending payloads."""
    async with escapement.connect(url, settings=PATIENT) as broker:
        await broker.admin("namespaces.create", namespace="shop/eu")
        for topic in (TOPIC, "shop/eu/others"):
            await broker.admin("subscriptions.create", topic=topic, subscription="s")
        left = {b"%d/%d" % (n, index) for n in range(BATCHES) for index in range(BATCH)}
        async with await broker.producer(TOPIC) as producer:
            for number in range(BATCHES):
                payloads = [b"%d/%d" % (number, index) for index in range(BATCH)]
                keys = [f"k{index}" if index % 5 else None for index in range(BATCH)]
                priorities = [index % 256 for index in range(BATCH)]
                await producer.send_many(payloads, delay=DELAYS, keys=keys, priorities=priorities)
        async with await broker.producer("shop/eu/others") as producer:
            await producer.send_many([b"other"] * 100, delay=LATER)
        async with await broker.producer("shop/eu/unread") as producer:
            await producer.send_many([b"due, without a subscription"] * 10)
        # Cancel and reschedule messages of the fifth batch.
        first = 4 * BATCH
        await broker.cancel(list(range(first + 2, first + 60, 3)), topic=TOPIC)
        left -= {b"4/%d" % index for index in range(2, 60, 3)}
        await broker.reschedule(list(range(first + 62, first + 90, 3)), topic=TOPIC, delay=SOON)
        async with broker.consumer(TOPIC, "s") as inbox:
            done: list[int] = []
            async for message in inbox:
                done.append(message.offset)
                left.discard(message.payload)
                if len(done) == 200:
                    break
            await inbox.ack(done, durable=True)
        return left


async def deliveries(url: str, count: int) -> set[bytes]:
    """Make all messages of TOPIC due, and return the payloads of ``count`` deliveries."""
    async with escapement.connect(url, settings=PATIENT) as broker:
        await broker.run_now(list(range(BATCHES * BATCH)), topic=TOPIC)
        got: list[bytes] = []
        async with broker.consumer(TOPIC, "s") as inbox:
            async for message in inbox:
                got.append(message.payload)
                await inbox.ack(message)
                if len(got) == count:
                    break
        assert len(set(got)) == len(got)
        return set(got)


async def test_tasks_build_the_index_that_the_local_engine_builds(
    spark: SparkSession, mysql_url: str, tmp_path: Path
) -> None:
    """P5, B7: both have the same content. An audit finds nothing, and a broker delivers all.

    One topic has log rows but no pending messages.
    """
    with broker_process(tmp_path / "data", mysql_url) as process:
        left = await live(process.url)
        process.stop()
        shutil.rmtree(process.index)
        here = run(spark, RebuildConfig(tmp_path / "other", mysql_url))
        told: list[Progress] = []
        done = run(
            spark,
            RebuildConfig(
                process.data,
                mysql_url,
                engine="spark",
                memory_bytes=10_000,
                progress=lambda progress: told.append(replace(progress)),
            ),
        )
        assert done == here
        assert told[-1] == done, "counted by the tasks"
        expected = content_of(tmp_path / "other" / "index")
        assert content_of(process.index) == expected
        assert len(expected) > 700
        names = {path.name for path in process.index.iterdir()}
        assert len(names) > 3, "one segment for each range"
        assert names == {"MANIFEST", *(f"{n:08d}.segment" for n in range(1, len(names)))}
        found = audit(spark, AuditConfig({"url": mysql_url}, index=str(process.data)))
        assert found.findings == []
        process.start()
        assert await deliveries(process.url, len(left)) == left


def test_files_of_a_killed_task_are_not_part_of_the_index(
    spark: SparkSession, tmp_path: Path
) -> None:
    """P5: the next attempt writes everything again, into new files."""
    building = Building(tmp_path / "index")
    work = Work(LogAddress(), SharedDirectory.mark_in(building.directory), 0, 20_000)
    blocks = [(number % 2, block_of(number)) for number in range(12)]

    def gather_and_die(some: Iterable[tuple[int, Block]]) -> Iterator[Written]:
        context: Any = TaskContext.get()

        def until_death() -> Iterator[tuple[int, Block]]:
            for number, block in enumerate(some):
                if number == 4 and not context.attemptNumber():
                    os._exit(1)
                yield block

        return gather(work, context.taskAttemptId(), until_death())

    written = (
        spark.sparkContext.parallelize(blocks, 1).partitionBy(2, int).mapPartitions(gather_and_die)
    )
    found = written.collect()
    files = {path.name for path in building.directory.iterdir()}
    assert files > {one.name for one in found} | {"MARK"}, "files of the killed attempt"
    assert sum(one.rows for one in found) == 12 * 50
    paths = [building.directory / one.name for one in found]
    building.name("log", {}, paths, base=None, forgotten_until_ms=0)
    building.merge(IndexLimits(), lambda step: step())
    building.install()
    assert sorted(offset for _, _, offset in content_of(tmp_path / "index")) == list(range(600))
    assert len(list((tmp_path / "index").iterdir())) == len(found) + 1


def block_of(number: int) -> Block:
    """Return a block of 50 messages of 100 bytes."""
    offsets = np.arange(50 * number, 50 * number + 50)
    batch = MessageBatch(Blobs.of([b"%100d" % offset for offset in offsets.tolist()]))
    return Block(1, (offsets % 7).tobytes(), offsets.tobytes(), batch.encode())


def test_rebuild_says_why_it_cannot_use_tasks(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P5: without a session, with SQLite on a cluster, with a password in the URL."""
    with pytest.raises(InvalidRequest, match="needs a Spark session"):
        run(None, RebuildConfig(tmp_path, "mysql://db/log", engine="spark"))
    (tmp_path / "log.sqlite3").touch()
    cluster: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    with pytest.raises(InvalidRequest, match="SQLite cannot be read by a cluster"):
        run(cluster, RebuildConfig(tmp_path))
    with pytest.raises(InvalidRequest, match="password"):
        run(cluster, RebuildConfig(tmp_path, "mysql://user:secret@db/log"))
    data, secret = str(tmp_path), "mysql://user:secret@db/log"
    asked = ["pipeline", "rebuild", "--data", data, "--log", secret, "--engine", "spark"]
    assert command(asked) == 1
    assert "a password in the option url" in capsys.readouterr().err
    assert not list(tmp_path.glob("broker.*")), "nothing was begun"
