"""The metrics of a real broker equal a recount of what its clients did."""

from __future__ import annotations

import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import trio

import escapement
from escapement.protocol.amend_status import AmendStatus
from support.database.servers import free_port
from support.metrics import plain, scrape
from support.processes.broker import PATIENT, broker_process, until
from support.seeds import seeds

MOST_DELIVERIES = 3
POLICY = {"max_deliveries": MOST_DELIVERIES}
TIMEOUT_S = 120
CONSUMERS = 2


@pytest.fixture(params=["sqlite", "mysql"])
def log_url(request: pytest.FixtureRequest) -> str | None:
    """No URL for SQLite, and the URL of a new MySQL database."""
    return request.getfixturevalue("mysql_url") if request.param == "mysql" else None


class Recount:
    """What the clients of one broker did, by the names of the counters."""

    def __init__(self, broker: escapement.Broker, rng: random.Random) -> None:
        self.broker = broker
        self.rng = rng
        self.done: Counter[str] = Counter()
        self.held = 0  # messages that were received and left in flight
        self.put_off = 0  # messages that were returned for an hour
        self.finished = 0  # consumers that receive no more
        self.compared = trio.Event()
        self.open = 0  # messages that are due soon and neither finished nor left

    async def publish(self, topic: str, delays_ms: Any) -> list[int]:
        producer = await self.broker.producer(topic)
        sent = await producer.send_many([b"x" * 40] * len(delays_ms), delay=np.array(delays_ms))
        self.done["published"] += len(delays_ms)
        return [one.id.offset for one in sent]

    async def consume(self, topic: str, name: str) -> None:
        """Receive messages until none is open. Acknowledge, return or leave each at random."""
        async with self.broker.consumer(topic, name, permits=50, ack_wait="10m") as inbox:
            while self.open:
                message = await inbox.receive(timeout_s=0.2)
                if message is None:
                    continue
                self.done["delivered"] += 1
                self.done["redelivered"] += message.redelivered
                draw = self.rng.random()
                if draw < 0.6:
                    await message.ack()
                    self.done["acknowledged"] += 1
                    self.open -= 1
                elif draw < 0.98:
                    await message.nack(timedelta(milliseconds=self.rng.randrange(50)))
                    if message.attempt == MOST_DELIVERIES:
                        self.done["dead_lettered"] += 1
                        self.open -= 1
                elif draw < 0.99 and message.attempt < MOST_DELIVERIES:
                    await message.nack(timedelta(hours=1))
                    self.put_off += 1
                    self.open -= 1
                else:
                    self.held += 1
                    self.open -= 1
            await inbox.flush_acks()
            self.finished += 1
            # Messages in flight return when their consumer leaves.
            await self.compared.wait()


async def until_equal(http: httpx.AsyncClient, expected: dict[str, float]) -> dict[str, float]:
    """Scrape until the expected values are there; otherwise compare the last ones."""
    with trio.move_on_after(TIMEOUT_S / 4):
        while True:
            found = plain(await scrape(http))
            if {name: found.get(name) for name in expected} == expected:
                return found
            await trio.sleep(0.1)
    assert {name: found.get(name) for name in expected} == expected
    return found


@pytest.mark.parametrize("seed", seeds(range(1)))
async def test_metrics_equal_a_recount_of_what_clients_did(
    seed: int, tmp_path: Path, log_url: str | None
) -> None:
    """O4, V5: all counters and numbers of messages, after thousands of random operations."""
    port = free_port()
    rng = random.Random(seed)
    with broker_process(tmp_path / "b", log_url, "--http", f"127.0.0.1:{port}") as process:
        async with (
            escapement.connect(process.url, settings=PATIENT) as broker,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
        ):
            with trio.fail_after(TIMEOUT_S):
                await _work_and_compare(broker, http, rng)


async def _work_and_compare(
    broker: escapement.Broker, http: httpx.AsyncClient, rng: random.Random
) -> None:
    for name in ("orders", "waiting", "gone"):
        await broker.admin("subscriptions.create", topic=name, subscription="s", policy=POLICY)
    for name, policy in (
        ("short", {"ttl_ms": 300}),
        ("full", {"quota_messages": 50, "quota_action": "drop_oldest"}),
    ):
        await broker.admin("subscriptions.create", topic=name, subscription="s")
        await broker.admin("topics.update", topic=name, policy=policy)

    recount = Recount(broker, rng)
    async with trio.open_nursery() as nursery:
        # Messages that fall due while the consumers run, and messages of a distant hour.
        far: list[int] = []
        for _ in range(30):
            count = rng.randrange(50, 200)
            await recount.publish("orders", [rng.randrange(1500) for _ in range(count)])
            recount.open += count
            hours_ms = [3_600_000 + rng.randrange(1000) for _ in range(rng.randrange(40))]
            far += await recount.publish("orders", hours_ms) if hours_ms else []
        for _ in range(CONSUMERS):
            nursery.start_soon(recount.consume, "orders", "s")
        cancelled = rng.sample(far, len(far) // 3)
        outcomes = await broker.cancel(cancelled, topic="orders")
        assert set(outcomes.statuses.tolist()) == {AmendStatus.DONE}
        recount.done["cancelled"] += len(cancelled)
        # Due messages without a consumer; messages that expire, and messages that are dropped.
        await recount.publish("waiting", [0] * 40)
        await recount.publish("short", [0] * 300)
        recount.done["expired"] += 300
        await recount.publish("full", [0] * 300)
        # A topic that is deleted: its counters stay in the sum.
        await recount.publish("gone", [0] * 70)
        async with broker.consumer("gone", "s") as inbox:
            for _ in range(70):
                message = await inbox.receive()
                assert message is not None
                await message.ack(durable=True)
        recount.done["delivered"] += 70
        recount.done["acknowledged"] += 70
        await broker.admin("topics.delete", topic="gone", force=True)
        # A consumer that still waits for a message would get those that the other one returns.
        await until(lambda: recount.finished == CONSUMERS)
        dead = recount.done["dead_lettered"]
        expected = {
            f"escapement_messages_{name}_total": count
            for name, count in {
                **recount.done,
                "published": recount.done["published"] + dead,
                "dropped": 250,
                "acknowledged": recount.done["acknowledged"] + dead + 300 + 250,
            }.items()
        } | {
            "escapement_messages_scheduled": len(far) - len(cancelled),
            "escapement_messages_due": 40 + 50,
            "escapement_messages_in_flight": recount.held,
            "escapement_messages_retrying": recount.put_off,
            "escapement_early_deliveries_total": 0,
            "escapement_delivery_lateness_seconds_count": recount.done["delivered"]
            - recount.done["redelivered"],
            "escapement_ready": 1,
            "escapement_database_up": 1,
        }
        found = await until_equal(http, expected)
        recount.compared.set()
    assert dead
    assert recount.held
    assert recount.put_off
    later_ms = time.time_ns() // 1_000_000 + 1_800_000
    page = await broker.admin("topics.peek", topic="orders", from_ms=later_ms, count=1)
    next_ms = page["messages"][0]["due_at_ms"]
    assert found["escapement_next_due_timestamp_seconds"] == pytest.approx(next_ms / 1000)
    assert found["escapement_oldest_due_age_seconds"] > 0
    assert found["escapement_commit_seconds_count"] > 20
    assert 0 < found["escapement_lease_left_seconds"] <= 10
    assert found["escapement_connections"] == 1
