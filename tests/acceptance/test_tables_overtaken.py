"""A broker that serves a message table hangs, and a second broker with the same log takes over.

Real processes and a real server. The first broker is stopped by SIGSTOP at a random moment, while
it claims and acknowledges rows, and goes on after the takeover.
"""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import trio

import escapement
from support.outbox.outboxes import Rows
from support.processes.broker import (
    PATIENT,
    BrokerProcess,
    broker_process,
    until,
    until_it_takes_over,
)
from support.tables.shops import Shop, comment

SHORT_LEASE: Final[dict[str, Any]] = {"lease_ms": 1_500}
ROWS: Final = 1_000
CONSUMERS: Final = 3
TIMEOUT_S: Final = 60
DIRECTIVES: Final = comment(
    ack_wait=3, max_backoff=4, poller_interval=0.1, batch_size=5, message_cols="id"
)
COLUMNS: Final = "id, epoch, time_next, time_acked"


@dataclass
class Seen:
    """The rows that the consumers have got."""

    delivered: set[int] = field(default_factory=set)
    acked: list[int] = field(default_factory=list)  # each confirmed acknowledgement


async def consume(url: str, topic: str, seen: Seen) -> None:
    """Acknowledge rows, until cancelled."""
    settings = replace(PATIENT, close_timeout_s=0.1)
    async with (
        escapement.connect(url, settings=settings) as broker,
        broker.consumer(topic, "table", permits=20) as inbox,
    ):
        async for message in inbox:
            id = message.row["id"]
            assert id not in seen.acked, "a row was sent after its acknowledgement"
            seen.delivered.add(id)
            if await inbox.ack([message], durable=True):
                seen.acked.append(id)


async def settled(shop: Shop) -> Rows:
    """Wait until the broker without consumers has written everything, and return the rows."""
    rows, before = shop.rows(COLUMNS), None
    while rows != before:
        await trio.sleep(0.5)
        rows, before = shop.rows(COLUMNS), rows
    return rows


async def test_broker_that_wakes_up_changes_no_row(tmp_path: Path, mysql_url: str) -> None:
    """V8, V9, invariant 8: each row is acknowledged once, although both brokers had it."""
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng, seen, shop = random.Random(seed), Seen(), Shop(mysql_url)
    topic = shop.create(comment=DIRECTIVES)
    shop.fill(ROWS, tenant_id=1)
    served: dict[str, Any] = {"limits": SHORT_LEASE, "tables": [shop.url]}
    second = BrokerProcess(tmp_path / "second", mysql_url, **served)
    try:
        with broker_process(tmp_path / "first", mysql_url, **served) as first:
            async with trio.open_nursery() as nursery:
                for _ in range(CONSUMERS):
                    nursery.start_soon(consume, first.url, topic, seen)
                await until(lambda: len(seen.acked) > 20)
                await trio.sleep(rng.random() / 5)
                first.pause()
                nursery.cancel_scope.cancel()
            assert len(seen.acked) < ROWS
            await until_it_takes_over(second)
            async with trio.open_nursery() as nursery:
                for _ in range(CONSUMERS):
                    nursery.start_soon(consume, second.url, topic, seen)
                some = rng.randint(len(seen.acked) + 1, ROWS - 100)
                await until(lambda: len(seen.acked) >= some)
                nursery.cancel_scope.cancel()
            before = await settled(shop)
            first.resume()
            await until(lambda: "the broker of bundle 0 ends" in first.complaints())
            assert shop.rows(COLUMNS) == before
            async with trio.open_nursery() as nursery:
                for _ in range(CONSUMERS):
                    nursery.start_soon(consume, second.url, topic, seen)
                with trio.fail_after(TIMEOUT_S):
                    while shop.run("SELECT 1 FROM mails WHERE time_acked IS NULL LIMIT 1"):  # noqa: ASYNC110
                        await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        assert second.stop() == 0
    finally:
        second.remove()
    assert len(seen.acked) == len(set(seen.acked))
    assert seen.delivered == {id for (id,) in shop.rows("id")}
