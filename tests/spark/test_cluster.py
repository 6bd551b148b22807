"""Tests of jobs on a cluster of a standalone Spark master and worker with the wheel installed."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import trio

import escapement
from support.processes.broker import PATIENT, broker_process
from support.processes.spark_cluster import CHECKOUT, SparkCluster, install

NAMESPACE: Final = "shop/eu"
TOPIC: Final = "shop/eu/reminders"
USER: Final = "spark_on_a_cluster"
SECRET: Final = "s3cret-0f-the-cluster"
ROWS: Final = 5_000
SOON: Final = timedelta(seconds=30)
# The format of an appointment in the example.
AT: Final = "%Y-%m-%d %H:%M"
SPREAD_DAYS: Final = 20


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    install(tmp_path / "environment")
    made = SparkCluster(tmp_path / "environment", tmp_path / "spark")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def url(mysql_url: str, mysql_server: Any) -> Iterator[str]:
    """The URL of the log, for a user whose password is not in the URL."""
    database = urlsplit(mysql_url).path.strip("/")
    mysql_server.admin(f"CREATE USER {USER}@'%' IDENTIFIED BY '{SECRET}'")
    rights = "SELECT, INSERT, UPDATE, DELETE"
    mysql_server.admin(f"GRANT {rights} ON {database}.* TO {USER}@'%'")
    yield f"mysql://{USER}@127.0.0.1:{urlsplit(mysql_url).port}/{database}"
    mysql_server.admin(f"DROP USER {USER}@'%'")


def write_appointments(file: Path) -> dict[str, int]:
    """Write a CSV and return due times in ms by customer: half of them soon, half in later days."""
    soon = (datetime.now(UTC) + SOON).replace(second=0, microsecond=0) + timedelta(minutes=1)
    wanted = {}
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["customer", "phone", "at", "zone"])
        for n in range(ROWS):
            due = soon - timedelta(minutes=n % 3) if n % 2 else later(soon, n)
            writer.writerow([f"c{n}", f"+{n}", f"{due + timedelta(days=1):{AT}}", "UTC"])
            wanted[f"c{n}"] = round(due.timestamp() * 1000)
    return wanted


def later(soon: datetime, n: int) -> datetime:
    return soon + timedelta(days=1 + n % SPREAD_DAYS)


@pytest.mark.long
async def test_jobs_run_on_a_cluster_and_reveal_no_password(
    cluster: SparkCluster, url: str, mysql_url: str, tmp_path: Path
) -> None:
    """B7, P5: jobs schedule, read and rebuild in other processes while a broker delivers."""
    jobs, at = cluster.bin / "escapement-pipeline.py", ["--log", url]
    secret = {"ESCAPEMENT_PASSWORD": SECRET}
    conf = {f"spark.executorEnv.{name}": value for name, value in secret.items()}

    async def submit(name: str, *application: str | Path) -> str:
        run = partial(cluster.submit, name, *application, environment=secret, conf=conf)
        return await trio.to_thread.run_sync(run)

    with broker_process(tmp_path / "data", mysql_url) as process:
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await broker.admin("namespaces.create", namespace=NAMESPACE)
            policy = {"retention_ms": "0s", "archive": "yes"}
            await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="texts")
            file = tmp_path / "appointments.csv"
            wanted = write_appointments(file)
            example = CHECKOUT / "examples" / "spark_reminders.py"
            await submit("schedule", example, file, "--url", url, "--topic", TOPIC)
            received = await consumed(broker, sum(1 for n in range(ROWS) if n % 2))
        assert all(due_ms >= wanted[customer] for customer, due_ms in received.items())
        assert received.keys() == {f"c{n}" for n in range(1, ROWS, 2)}
        weeks = ["--by", "day", "--for", "4w", "-o", "json"]
        said = await submit("forecast", jobs, "forecast", TOPIC, *at, *weeks)
        assert answer(said)["total"] == ROWS // 2
        to = ["--to", tmp_path / "archive", "-o", "json"]
        said = await submit("archive", jobs, "archive", *at, *to)
        assert [topic["messages"] for topic in answer(said)] == [ROWS // 2]
        (lag,) = answer(await submit("lag", jobs, "lag", *at, "-o", "json"))["totals"]
        assert lag["acknowledged"] == ROWS // 2
    # The broker has stopped and its disk is lost.
    shutil.rmtree(process.index)
    said = await submit("rebuild", jobs, "rebuild", *at, "--data", process.data)
    assert f"{ROWS // 2:,} in the index" in said
    said = await submit("audit", jobs, "audit", *at, "--index", process.data)
    assert "everything adds up" in said
    # The password is in a file on all machines, not in the environment.
    secret, conf = {}, {}
    (tmp_path / "password").write_text(SECRET)
    reader = Path(__file__).with_name("submitted.py")
    said = await submit("read", reader, url, TOPIC, tmp_path / "password", tmp_path / "out")
    assert all(path.startswith(str(cluster.bin.parent)) for path in said.split())
    assert stored(tmp_path / "out") == {
        customer: (received.get(customer, due_ms), customer in received)
        for customer, due_ms in wanted.items()
    }
    texts = dict(cluster.written())
    assert {"master", "worker", "schedule", "audit", "rebuild"} <= {str(name) for name in texts}
    assert any("events" in name.parts for name in texts)
    assert any("work" in name.parts for name in texts)
    assert [name for name, text in texts.items() if SECRET in text] == []


def answer(said: str) -> Any:
    """Return the JSON output of a job, from its last line. Standard error may precede it."""
    return json.loads(said.splitlines()[-1])


async def consumed(broker: escapement.Broker, count: int) -> dict[str, int]:
    """Consume ``count`` messages without duplicates, and return due times by customer."""
    received: dict[str, int] = {}
    with trio.fail_after(180):
        async with broker.consumer(TOPIC, "texts") as inbox:
            async for message in inbox:
                assert message.key not in received
                received[message.key] = message.due_ms
                await message.ack()
                if len(received) == count:
                    break
            await inbox.flush_acks()
    return received


def stored(out: Path) -> dict[str, tuple[int, bool]]:
    """Return the due time of each customer, and whether its message is acknowledged."""
    rows = [
        json.loads(line) for part in out.glob("part-*") for line in part.read_text().splitlines()
    ]
    return {
        json.loads(row["payload"])["customer"]: (row["due_ms"], row["state"] == "acked")
        for row in rows
    }
