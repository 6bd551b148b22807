"""Kills of a broker during publishing and delivery: no message is lost, early or stored twice.

Real processes, a real database and TCP. Several producers publish, several consumers of one shared
subscription receive, and the broker is killed at random times. A record keeps every receipt and
every delivery. At the end it is checked against the invariants of docs/architecture.md.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio

import escapement
from escapement.names import TopicName
from escapement.storage.encoding.lag import TRIED, UNSEEN, Tally
from escapement.storage.engine.open import open_engine
from escapement.storage.state.lag_table import read_lags
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until
from support.storage.topic_states import read_topic

TOPIC: Final = "shop/eu/orders"
SUBSCRIPTION: Final = "billing"
ID: Final = struct.Struct("<II")  # producer, number
LONGEST_DELAY_MS: Final = 3_000
# Receipts and deliveries use different connections, so either may overtake the other by this much.
OVERTAKE_MS: Final = 1_000
TIMEOUT_S: Final = 120


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Seen:
    """A batch as a consumer received it, in columns."""

    at_ms: int
    consumer: int
    ids: np.ndarray
    offsets: np.ndarray
    due_ms: np.ndarray
    again: np.ndarray  # marked redelivered, or with an attempt above 1


@dataclass
class Record:
    """All receipts, deliveries and kills, as the clients saw them."""

    wanted_ms: dict[int, int] = field(default_factory=dict)  # id: the earliest delivery
    confirmed: set[int] = field(default_factory=set)
    seen: list[Seen] = field(default_factory=list)
    got: set[int] = field(default_factory=set)
    acked: list[tuple[int, np.ndarray]] = field(default_factory=list)  # receipt ms, offsets
    nacked: list[tuple[int, int, np.ndarray]] = field(default_factory=list)
    left: list[tuple[int, int]] = field(default_factory=list)  # time, consumer
    killed_ms: list[int] = field(default_factory=list)
    ready_ms: list[int] = field(default_factory=list)

    def received(self, batch: escapement.Batch, consumer: int) -> None:
        ids = np.frombuffer(bytes(batch.payloads.data), "<u8")
        assert len(ids) == len(batch)
        again = batch.redelivered | (batch.attempts > 1)
        self.seen.append(
            Seen(now_ms(), consumer, ids, batch.offsets.copy(), batch.due_ms.copy(), again)
        )
        self.got.update(ids.tolist())


# -- producers --------------------------------------------------------------------------


def ids_of(producer: int, first: int, count: int) -> list[bytes]:
    return [ID.pack(producer, number) for number in range(first, first + count)]


def as_numbers(payloads: list[bytes]) -> list[int]:
    return np.frombuffer(b"".join(payloads), "<u8").tolist()


async def publish_batches(
    broker: escapement.Broker, record: Record, number: int, batches: int, size: int, seed: int
) -> None:
    """Publish batches with delays of all kinds, by a named producer with its own sequence."""
    chance = np.random.default_rng(seed)
    producer = await broker.producer(TOPIC, name=f"named-{number}")
    for batch in range(batches):
        payloads = ids_of(number, batch * size, size)
        began_ms = now_ms()
        wanted_ms = np.full(size, began_ms)
        match batch % 4:
            case 0:
                times = {"delay": chance.integers(0, LONGEST_DELAY_MS, size)}
                wanted_ms += times["delay"]
            case 1:
                times = {"at": began_ms + chance.integers(-5_000, LONGEST_DELAY_MS, size)}
                wanted_ms = np.maximum(wanted_ms, times["at"])
            case 2:
                times = {"at": began_ms - chance.integers(1, 100_000, size)}
            case _:
                times = {}
        ids = as_numbers(payloads)
        record.wanted_ms.update(zip(ids, wanted_ms.tolist(), strict=True))
        receipts = await producer.send_many(payloads, sequence=batch * size, **times)
        assert len(receipts) == size
        record.confirmed.update(ids)
        await trio.sleep(chance.uniform(0, 0.04))


async def publish_singly(
    broker: escapement.Broker, record: Record, number: int, count: int, seed: int
) -> None:
    """Publish single messages concurrently, each twice under its dedup key by two producers."""
    chance = random.Random(seed)
    producer, other = await broker.producer(TOPIC), await broker.producer(TOPIC)

    async def one(payload: bytes) -> None:
        delay_ms = chance.choice([0, 0, chance.randrange(LONGEST_DELAY_MS)])
        (id,) = as_numbers([payload])
        record.wanted_ms[id] = now_ms() + delay_ms
        delay = (delay_ms, "ms") if delay_ms else None
        receipt = await producer.send(payload, delay=delay, dedup=f"{id}")
        record.confirmed.add(id)
        again = await other.send(payload, dedup=f"{id}")
        assert again.duplicate
        assert None in (again.id, receipt.id) or again.id == receipt.id

    for first in range(0, count, 50):
        async with trio.open_nursery() as nursery:
            for payload in ids_of(number, first, 50):
                nursery.start_soon(one, payload)
        await trio.sleep(chance.uniform(0, 0.02))


# -- consumers ----------------------------------------------------------------------------


async def consume(
    url: str, record: Record, number: int, seed: int, task_status: trio.TaskStatus[None]
) -> None:
    """Acknowledge some batches durably and others not, and nack some messages."""
    chance = np.random.default_rng(seed)
    async with escapement.connect(url, settings=PATIENT) as broker:
        task_status.started()
        async with broker.consumer(TOPIC, SUBSCRIPTION, permits=3_000, ack_wait=(2, "m")) as inbox:
            async with trio.open_nursery() as nursery:
                async for batch in inbox.batches():
                    record.received(batch, number)
                    back = (chance.random(len(batch)) < 0.02) & ~batch.redelivered
                    if back.any():
                        record.nacked.append((now_ms(), number, batch.offsets[back]))
                        delay = (50, "ms") if chance.random() < 0.5 else (1, "s")
                        await inbox.nack(batch.offsets[back], delay=delay)
                    offsets = batch.offsets[~back]
                    if number == 0:
                        nursery.start_soon(acknowledge, inbox, record, offsets)
                    else:
                        await inbox.ack(offsets)


async def acknowledge(inbox: escapement.Inbox, record: Record, offsets: np.ndarray) -> None:
    await inbox.ack(offsets, durable=True)
    record.acked.append((now_ms(), offsets))


async def consume_and_vanish(url: str, record: Record, number: int, seed: int) -> None:
    """Receive messages, acknowledge few of them, and disconnect, repeatedly."""
    chance = random.Random(seed)
    while True:
        with trio.move_on_after(chance.uniform(0.2, 1.0)) as timeout:
            try:
                async with escapement.connect(url, settings=PATIENT) as broker:
                    async with broker.consumer(TOPIC, SUBSCRIPTION, permits=500) as inbox:
                        async for batch in inbox.batches():
                            record.received(batch, number)
                            if chance.random() < 0.3:
                                await inbox.ack(batch.offsets)
            except escapement.EscapementError:
                await trio.sleep(0.05)
        record.left.append((now_ms(), number))
        if timeout.cancelled_caught:
            await trio.sleep(chance.uniform(0, 0.2))


# -- kills --------------------------------------------------------------------------------


async def kill_at_times(broker: BrokerProcess, record: Record, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(kills):
        await trio.sleep(chance.uniform(0.8, 2.2))
        record.killed_ms.append(now_ms())
        await trio.to_thread.run_sync(broker.kill)
        await trio.to_thread.run_sync(broker.start)
        record.ready_ms.append(now_ms())


# -- checks -------------------------------------------------------------------------------


def check_record(record: Record) -> None:
    """Check the record against the invariants."""
    ids = np.concatenate([seen.ids for seen in record.seen])
    offsets = np.concatenate([seen.offsets for seen in record.seen])
    due_ms = np.concatenate([seen.due_ms for seen in record.seen])
    again = np.concatenate([seen.again for seen in record.seen])
    at_ms = np.concatenate([np.full(len(seen.ids), seen.at_ms) for seen in record.seen])
    consumer = np.concatenate([np.full(len(seen.ids), seen.consumer) for seen in record.seen])
    none_unwanted_or_lost(record, ids)
    none_early(record, ids, due_ms, at_ms)
    none_stored_twice(ids, offsets)
    none_after_its_receipt(record, offsets, at_ms)
    repeats_explained(record, offsets, at_ms, consumer, again)


def none_unwanted_or_lost(record: Record, ids: np.ndarray) -> None:
    lost = record.confirmed - set(ids.tolist())
    assert not lost, f"{len(lost)} confirmed messages were never delivered: {sorted(lost)[:5]}"
    assert set(ids.tolist()) <= record.wanted_ms.keys(), (
        "a message was delivered that was not published"
    )


def none_early(record: Record, ids: np.ndarray, due_ms: np.ndarray, at_ms: np.ndarray) -> None:
    assert (due_ms <= at_ms).all(), (
        f"{(due_ms > at_ms).sum()} messages were delivered before they were due"
    )
    wanted_ms = np.array([record.wanted_ms[id] for id in ids.tolist()])
    assert (wanted_ms <= due_ms).all(), "a due time is before the requested time"


def none_stored_twice(ids: np.ndarray, offsets: np.ndarray) -> None:
    pairs = np.unique(np.stack([ids.astype(np.int64), offsets]), axis=1)
    stored, counts = np.unique(pairs[0], return_counts=True)
    assert (counts == 1).all(), f"{(counts > 1).sum()} messages of {len(stored)} are stored twice"
    assert len(np.unique(pairs[1])) == len(pairs[1]), "an offset was used twice"


def none_after_its_receipt(record: Record, offsets: np.ndarray, at_ms: np.ndarray) -> None:
    """Check that no durably acknowledged message is redelivered, also not after a restart."""
    receipt_ms = np.full(int(offsets.max()) + 1, np.iinfo(np.int64).max)
    for acked_ms, acked in record.acked:
        receipt_ms[acked] = np.minimum(receipt_ms[acked], acked_ms)
    after = at_ms > np.minimum(receipt_ms[offsets], 1 << 62) + OVERTAKE_MS
    assert not after.any(), f"{after.sum()} messages were delivered after their receipts"
    for killed_ms, ready_ms in zip(record.killed_ms, record.ready_ms, strict=True):
        after = (receipt_ms[offsets] < killed_ms) & (at_ms > ready_ms)
        assert not after.any(), f"{after.sum()} acknowledged messages were redelivered after a kill"


def repeats_explained(
    record: Record,
    offsets: np.ndarray,
    at_ms: np.ndarray,
    consumer: np.ndarray,
    again: np.ndarray,
) -> None:
    """Check that each redelivery is marked, and follows a kill, a nack or a lost consumer."""
    order = np.lexsort((at_ms, offsets))
    same = np.flatnonzero(offsets[order][1:] == offsets[order][:-1])
    earlier, later = order[same], order[same + 1]
    unmarked = ~again[later]
    # The order of two deliveries in the same millisecond is not known.
    unmarked &= ~(again[earlier] & (at_ms[later] - at_ms[earlier] <= OVERTAKE_MS))
    assert not unmarked.any(), f"{unmarked.sum()} repeated deliveries are not marked redelivered"
    killed_ms = np.array(record.killed_ms)
    back: dict[tuple[int, int], list[int]] = {}
    for gave_ms, who, given in record.nacked:
        for offset in given.tolist():
            back.setdefault((offset, who), []).append(gave_ms)
    left = {who: np.array([at for at, one in record.left if one == who]) for _, who in record.left}

    def explained(first: int, second: int) -> bool:
        low, high = at_ms[first] - OVERTAKE_MS, at_ms[second]
        if ((killed_ms >= low) & (killed_ms <= high)).any():
            return True
        for holder in {int(consumer[first]), int(consumer[second])}:
            if any(low <= at <= high for at in back.get((int(offsets[first]), holder), [])):
                return True
            times = left.get(holder)
            if times is not None and ((times >= low) & (times <= high + OVERTAKE_MS)).any():
                return True
        return False

    strange = [
        (int(offsets[a]), int(consumer[a]), int(consumer[b]), int(at_ms[b] - at_ms[a]))
        for a, b in zip(earlier.tolist(), later.tolist(), strict=True)
        if not explained(a, b)
    ]
    assert not strange, (
        f"{len(strange)} messages were in flight twice for no reason (offset, first, second, ms): "
        f"{strange[:5]}"
    )


# -- the tests ----------------------------------------------------------------------------


Part = Callable[[], Awaitable[None]]


async def run_together(parts: list[Part]) -> None:
    async with trio.open_nursery() as nursery:
        for part in parts:
            nursery.start_soon(part)


async def create_subscription(url: str) -> None:
    async with escapement.connect(url, settings=PATIENT) as client:
        await client.admin("namespaces.create", namespace="shop/eu")
        await client.admin(
            "namespaces.enable_delayed_message",
            namespace="shop/eu",
            tick_ms=20,
            granularity_ms=1_000,
        )
        await client.admin("subscriptions.create", topic=TOPIC, subscription=SUBSCRIPTION)


async def work_under_kills(
    broker: BrokerProcess, *, batches: int, singles: int, kills: int, seed: int
) -> Record:
    """Run two producers of batches, one of single messages and three consumers, with kills."""
    record = Record()
    url = broker.url
    await create_subscription(url)
    async with trio.open_nursery() as consumers:
        await consumers.start(consume, url, record, 0, seed)
        await consumers.start(consume, url, record, 1, seed + 1)
        consumers.start_soon(consume_and_vanish, url, record, 2, seed + 2)
        async with escapement.connect(url, settings=PATIENT) as client:
            await run_together(
                [
                    lambda: publish_batches(client, record, 0, batches, 300, seed + 3),
                    lambda: publish_batches(client, record, 1, batches, 300, seed + 4),
                    lambda: publish_singly(client, record, 2, singles, seed + 5),
                    lambda: kill_at_times(broker, record, kills, seed + 6),
                ]
            )
        # From here on the broker receives only acknowledgements.
        with contextlib.suppress(trio.TooSlowError):
            await until(lambda: record.confirmed <= record.got, TIMEOUT_S)
        consumers.cancel_scope.cancel()
    return record


async def check_nothing_is_left(broker: BrokerProcess) -> None:
    """Acknowledge the remaining messages, and check that none is redelivered after a restart."""
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        async with client.consumer(TOPIC, SUBSCRIPTION, permits=10_000) as inbox:
            with trio.fail_after(TIMEOUT_S):
                while await unacknowledged(client):
                    batch = await inbox.next_batch(timeout_s=0.1)
                    if batch is not None:
                        await inbox.ack(batch.offsets, durable=True)
            last = (await client.admin("topics.stats", topic=TOPIC))["next_offset"] - 1
            # The answer arrives when the plain acks of other consumers are durable as well.
            assert await inbox.ack_range(0, last, durable=True) == 0
    await trio.to_thread.run_sync(broker.kill)
    await trio.to_thread.run_sync(broker.start)
    async with escapement.connect(broker.url, settings=PATIENT) as client:
        left = await unacknowledged(client)
        assert left == 0, f"{left} messages are pending although all were acknowledged durably"
        async with client.consumer(TOPIC, SUBSCRIPTION) as inbox:
            assert await inbox.next_batch(timeout_s=0.5) is None, "a message was redelivered"


def check_lag_counts(data: Path, log_url: str | None) -> None:
    """Check that the lag counts each acknowledged message once, across all kills."""
    engine = open_engine(log_url, data)
    connection = engine.connect()
    try:
        hours = read_lags(connection, 0, 1 << 60)
        state = read_topic(engine, connection, TopicName.parse(TOPIC))
    finally:
        connection.close()
        engine.close()
    total = Tally.sum([hour.tally for hour in hours])
    tried, unseen = (int(total.of_kind(kind)[1].sum()) for kind in (TRIED, UNSEEN))
    assert tried + unseen == len(state.subscription(SUBSCRIPTION).acked)
    assert tried > unseen, "most messages were acknowledged while in flight"


async def unacknowledged(client: escapement.Broker) -> int:
    """Return the broker's count of unacknowledged messages."""
    (stats,) = await client.admin("subscriptions.list", topic=TOPIC)
    count: int = stats["unacknowledged"]
    return count


async def crash_test(
    data: Path, log_url: str | None, *, batches: int, singles: int, kills: int
) -> None:
    seed = int(os.environ.get("ESCAPEMENT_TEST_SEED") or secrets.randbelow(1 << 30))
    print(f"ESCAPEMENT_TEST_SEED={seed}")
    with broker_process(data, log_url) as broker:
        record = await work_under_kills(
            broker, batches=batches, singles=singles, kills=kills, seed=seed
        )
        print(f"{len(record.confirmed)} confirmed, {sum(len(s.ids) for s in record.seen)} seen")
        assert len(record.confirmed) == 2 * 300 * batches + singles
        check_record(record)
        await check_nothing_is_left(broker)
        check_lag_counts(data, log_url)
        errors = broker.complaints()
        assert "Traceback" not in errors, errors


async def test_kill_minus_nine_loses_nothing_on_mysql(tmp_path: Path, mysql_url: str) -> None:
    """P6, N1, N2, N4, V2, B3: invariants 1 to 6 over a hundred thousand messages."""
    await crash_test(tmp_path / "broker", mysql_url, batches=160, singles=6_000, kills=5)


async def test_kill_minus_nine_loses_nothing_on_sqlite(tmp_path: Path) -> None:
    """P6, N1, N2, N4, V2, B3: invariants 1 to 6 on SQLite."""
    await crash_test(tmp_path / "broker", None, batches=40, singles=2_000, kills=2)


@pytest.mark.long
async def test_forty_kills_lose_nothing_of_a_million_messages(
    tmp_path: Path, mysql_url: str
) -> None:
    """P6, N1, N2, N4, V2, B3: a million messages and forty kills."""
    await crash_test(tmp_path / "broker", mysql_url, batches=1_600, singles=40_000, kills=40)
