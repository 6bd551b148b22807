"""Kills of an archiving driver at any moment: the next run finishes its work."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import archiver
import pytest
from pyspark.sql import SparkSession

from escapement import testing
from escapement.errors import Conflict
from escapement.pipeline import audit
from escapement.pipeline.archive import ArchiveConfig, Archived, run
from escapement.pipeline.archive_manifest import Manifest
from escapement.storage import archive_record
from escapement.storage.engine.base import Engine
from escapement.storage.engine.open import open_engine
from support.storage.eventful_log import CONFIG, DAY_MS

NAMESPACE: Final = "shop/eu"
TOPICS: Final = 4
EACH: Final = 500
# Visible changes while a topic is archived: its directory appears, files appear in it, they move
# to their places, and the directory disappears. A busy machine may miss some of them.
CHANGES: Final = 4
DEADLINE_S: Final = 120
POLL_S: Final = 0.002


@pytest.fixture
def log(mysql_url: str, tmp_path: Path) -> Iterator[Engine]:
    """Some topics with messages and without subscriptions."""
    engine = open_engine(mysql_url, tmp_path)

    async def publish() -> None:
        start_ms = time.time_ns() // 1_000_000 - DAY_MS
        async with (
            testing.start(config=CONFIG, engine=engine, start_ms=start_ms) as world,
            world.connect() as broker,
        ):
            await broker.admin("namespaces.create", namespace=NAMESPACE)
            policy = {"archive": "yes", "retention_ms": "0s"}
            await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
            for number in range(TOPICS):
                async with await broker.producer(f"{NAMESPACE}/{number}") as producer:
                    await producer.send_many([b"%d %d" % (number, n) for n in range(EACH)])

    testing.run(publish)
    yield engine
    engine.close()


def kill_at_work(url: str, root: Path, changes: int) -> None:
    """Kill a driver after ``changes`` changes, or when all but one topic are archived."""
    with subprocess.Popen(
        [sys.executable, str(Path(archiver.__file__)), url, str(root)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stderr=subprocess.DEVNULL,
    ) as driver:
        try:
            before: set[str] = set()
            deadline = time.monotonic() + DEADLINE_S
            while changes and len(list(root.glob("_manifests/*.json"))) < TOPICS - 1:
                assert driver.poll() is None, "the driver has ended"
                assert time.monotonic() < deadline
                # os.walk skips files that are deleted meanwhile.
                there = {f"{at}/{name}" for at, _, names in os.walk(root) for name in ("", *names)}
                changes -= there != before
                before = there
                time.sleep(POLL_S)
        finally:
            driver.kill()


def finish(spark: SparkSession, url: str, root: Path) -> Archived:
    """Run the job again as soon as the database has noticed the end of the killed driver."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return run(spark, ArchiveConfig({"url": url}, str(root), older_than_ms=0))
        except Conflict:
            assert time.monotonic() < deadline
            time.sleep(POLL_S)


def check(spark: SparkSession, log: Engine, url: str, root: Path) -> None:
    """Check that each message is archived once, and that only files named by records exist."""
    named: set[str] = set()
    connection = log.connect()
    for topic_id in range(1, TOPICS + 1):
        assert archive_record.archived(connection, topic_id).to_array(0, 1 << 40).tolist() == [
            *range(EACH)
        ]
        for record in archive_record.records(connection, topic_id):
            manifest = Manifest.decode(record.manifest)
            named |= {file.path for file in manifest.files}
    connection.close()
    assert {str(path.relative_to(root)) for path in root.glob("namespace*/**/*.parquet")} == named
    found = spark.read.parquet(str(root)).selectExpr("topic", "CAST(payload AS STRING)").collect()
    assert sorted(tuple(row) for row in found) == sorted(
        (f"{NAMESPACE}/{number}", f"{number} {n}") for number in range(TOPICS) for n in range(EACH)
    )


@pytest.mark.long
@pytest.mark.parametrize("changes", [None, *range(1, CHANGES * TOPICS, 3)])
def test_next_run_finishes_the_work_of_a_killed_driver(
    spark: SparkSession, log: Engine, mysql_url: str, tmp_path: Path, changes: int | None
) -> None:
    """N8: after a kill at a random or given stage, each message is archived once."""
    if changes is None:
        changes = random.randrange(1, CHANGES * (TOPICS - 1))
        print(f"killed after {changes} changes")
    root = tmp_path / "archive"
    kill_at_work(mysql_url, root, changes)
    finish(spark, mysql_url, root)
    check(spark, log, mysql_url, root)
    assert audit.run(spark, audit.AuditConfig({"url": mysql_url})).findings == []
