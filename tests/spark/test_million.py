"""A million reminders, from a DataFrame to their consumer and into an archive.

Tasks are killed during each step that writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import million
import numpy as np
import pytest
import trio
from million import ROWS, TRIES
from reaper import Reaper

import escapement
from escapement.message import Int64s
from escapement.storage.engine.open import open_engine
from escapement.storage.log.generation import read_generations
from support.processes.broker import PATIENT, BrokerProcess, broker_process

NAMESPACE: Final = "shop/eu"
TOPIC: Final = "shop/eu/reminders"
# Time before the first due time, for writing, adopting and forecasting all messages. On a busy
# machine it is a multiple of the time that Spark took to start.
HEAD_MS: Final = 40_000
HEAD_STARTS: Final = 3
# Fewer kills than attempts of a task, so that every task can finish.
KILLS: Final = TRIES - 2
STEP_TIMEOUT_S: Final = 300


class Spark:
    """A Spark process that runs the steps of million.py."""

    def __init__(self, directory: Path) -> None:
        self._events = directory / "events"
        self._events.mkdir()
        self._said = directory / "spark.err"
        with self._said.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(million.__file__)), str(self._events)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                text=True,
            )
        self.start_s: float = self._answer()

    def take(self, step: str, kills: int = 0, **given: Any) -> Any:
        """Run a step, kill some of its tasks meanwhile, and return its answer."""
        began = time.monotonic()
        assert self._process.stdin is not None
        print(json.dumps({"step": step, **given}), file=self._process.stdin, flush=True)
        with Reaper(self._process.pid, kills, seed=26) as reaper:
            answer = self._answer()
        took_s = time.monotonic() - began
        print(f"{step}: {took_s:.1f} s, {reaper.killed} workers killed", flush=True)
        assert bool(reaper.killed) == bool(kills)
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._said.read_text(errors="replace")[-4000:]
        return json.loads(line)

    def end(self) -> int:
        """End the process, and return the number of failed tasks."""
        self._process.communicate()
        assert self._process.returncode == 0
        texts = [file.read_text() for file in self._events.rglob("events_*")]
        return sum(text.count('"Failed":true') for text in texts)

    def remove(self) -> None:
        """Kill the process in any state."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def spark_apart(tmp_path: Path) -> Iterator[Spark]:
    made = Spark(tmp_path)
    yield made
    made.remove()


class Delivered(NamedTuple):
    """Delivered messages in columns, by offset."""

    offsets: Int64s
    due_ms: Int64s
    at_ms: Int64s
    contents: million.Bytes


class DeliveredBatches:
    """Batches of delivered messages."""

    def __init__(self) -> None:
        self._batches: list[Delivered] = []
        self.count = 0

    def add(self, batch: escapement.Batch, now_ms: int) -> None:
        assert (batch.payloads.lengths == million.WIDTH).all()
        contents = np.frombuffer(batch.payloads.data, np.uint8).reshape(-1, million.WIDTH)
        at_ms = np.full(len(batch), now_ms)
        self._batches.append(Delivered(batch.offsets, batch.due_ms, at_ms, contents))
        self.count += len(batch)

    def all(self) -> Delivered:
        columns = [np.concatenate(pieces) for pieces in zip(*self._batches, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return Delivered(*(column[order] for column in columns))


async def adopted(broker: escapement.Broker) -> None:
    """Wait until the broker has adopted the only job."""
    with trio.fail_after(STEP_TIMEOUT_S):
        while (await broker.admin("jobs.list"))[0]["state"] != "adopted":  # noqa: ASYNC110
            await trio.sleep(0.1)


async def consumed(process: BrokerProcess) -> Delivered:
    """Receive and acknowledge a million messages, and check that there are no more."""
    delivered = DeliveredBatches()
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        with trio.fail_after(STEP_TIMEOUT_S):
            async with broker.consumer(
                TOPIC, "texts", permits=50_000, ack_wait=(10, "minutes")
            ) as inbox:
                while delivered.count < ROWS:
                    batch = await inbox.next_batch()
                    assert batch is not None
                    delivered.add(batch, time.time_ns() // 1_000_000)
                    await batch.ack()
                await inbox.flush_acks()
                assert await inbox.next_batch(timeout_s=1) is None
    return delivered.all()


def check_content(delivered: Delivered, begin_ms: int) -> None:
    """Check that no message is lost, duplicated, early or changed."""
    assert np.array_equal(delivered.offsets, np.arange(ROWS)), "lost, or delivered twice"
    which = million.numbers(delivered.contents)
    assert np.array_equal(delivered.contents[np.argsort(which)], million.payloads())
    assert (delivered.due_ms >= million.due_ms(begin_ms)[which]).all()
    assert (delivered.at_ms >= delivered.due_ms).all(), "delivered early"


def print_lateness(delivered: Delivered, attached_ms: int) -> None:
    """Print the lateness of messages that fell due after the consumer attached."""
    late_ms = (delivered.at_ms - delivered.due_ms)[delivered.due_ms > attached_ms]
    p50, p99, most = np.percentile(late_ms, [50, 99, 100]).round().astype(int).tolist()
    print(f"{len(late_ms)} on time, late by p50 {p50} ms, p99 {p99} ms, {most} ms", flush=True)


def check_forecast(delivered: Delivered, forecast: dict[str, Any]) -> None:
    """Check the number of messages in each second against the forecast."""
    due_ms = delivered.due_ms[delivered.due_ms > forecast["from_ms"]]
    counts = np.array(forecast["messages"])
    # The forecast must cover most messages. If it does not, HEAD_MS is too short for this machine.
    assert 2 * counts.sum() > ROWS
    spans = (due_ms - forecast["first_ms"]) // forecast["by_ms"]
    assert np.array_equal(np.bincount(spans, minlength=len(counts)), counts)


def check_read(delivered: Delivered, file: Path) -> None:
    """Check that the data source reads the delivered messages."""
    with np.load(file) as found:
        assert np.array_equal(found["offsets"], delivered.offsets)
        assert np.array_equal(found["due_ms"], delivered.due_ms)
        assert np.array_equal(found["contents"], delivered.contents)


async def purged(broker: escapement.Broker, url: str, directory: Path) -> None:
    """Start a new generation of the log, and wait until the old generations are deleted."""
    engine = open_engine(url, directory)
    connection = engine.connect()
    await broker.admin("broker.update", table_parallelism=2)
    began = time.monotonic()
    with trio.fail_after(STEP_TIMEOUT_S):
        while any(one.parallelism != 2 for one in read_generations(connection)):  # noqa: ASYNC110
            await trio.sleep(0.5)
    print(
        f"purged {time.monotonic() - began:.1f} s after the start of a new generation", flush=True
    )
    connection.close()
    engine.close()


@pytest.mark.long
async def test_a_million_reminders_arrive_and_are_archived_while_tasks_are_killed(
    spark_apart: Spark, mysql_url: str, tmp_path: Path
) -> None:
    """B6, B7, N8: no message is lost, early or duplicated, and each second matches the forecast."""

    async def take(step: str, *kills: int, **given: Any) -> Any:
        where = {"url": mysql_url, "topic": TOPIC}
        with trio.fail_after(STEP_TIMEOUT_S):
            taken = partial(spark_apart.take, step, *kills, **where, **given)
            return await trio.to_thread.run_sync(taken, abandon_on_cancel=True)

    async def read(name: str) -> Path:
        await take("read", out=str(tmp_path / name))
        return tmp_path / name

    with broker_process(tmp_path / "data", mysql_url) as process:
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await broker.admin("namespaces.create", namespace=NAMESPACE)
            await broker.admin(
                "namespaces.enable_delayed_message",
                namespace=NAMESPACE,
                granularity_ms=300_000,
            )
            policy = {"retention_ms": "0s", "archive": "yes"}
            await broker.admin("namespaces.update", namespace=NAMESPACE, policy=policy)
            await broker.admin("subscriptions.create", topic=TOPIC, subscription="texts")
            head_ms = max(HEAD_MS, round(HEAD_STARTS * 1000 * spark_apart.start_s))
            begin_ms = await take("schedule", KILLS, head_ms=head_ms)
            await adopted(broker)
            forecast = await take("forecast", until_ms=begin_ms + head_ms + million.SPAN_MS)
            attached_ms = time.time_ns() // 1_000_000
            # Messages that are due already are late, but the forecast has them.
            print(f"{begin_ms - attached_ms} ms before the first is due", flush=True)
            delivered = await consumed(process)
            check_content(delivered, begin_ms)
            print_lateness(delivered, attached_ms)
            check_forecast(delivered, forecast)
            check_read(delivered, await read("live.npz"))
            assert await take("archive", KILLS, root=str(tmp_path / "archive")) == ROWS
            check_read(delivered, await read("archived.npz"))
            await purged(broker, mysql_url, tmp_path)
            check_read(delivered, await read("purged.npz"))
    assert spark_apart.end() > 0, "no killed task has failed"
