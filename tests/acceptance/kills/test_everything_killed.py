"""All features at once, on a broker that is killed repeatedly.

The features are key order, dead letters, groups with follow-ups, dedup keys, cancelling,
rescheduling and a schedule. One producer and one consumer continue through every kill.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trio

import escapement
from escapement import AmendStatus, FollowUp
from support.messages.received_messages import in_log
from support.processes.broker import PATIENT, BrokerProcess, broker_process

KILLS = 3
BATCH = 5
TIMEOUT_S = 60
# Between two batches. The messages of a key are retried one after the other, so the dead letters of
# a faster producer take longer than the timeout.
PAUSE_S = 0.1
# On a busy machine, two kills in a row may count as attempts of a message that never failed.
POLICY = {"max_deliveries": 6, "min_backoff_ms": 50, "max_backoff_ms": 100, "order": "key"}
WORK = {"topic": "work", "subscription": "w"}


@dataclass
class Record:
    """The confirmations of the producer and the deliveries to the consumer."""

    sent: dict[bytes, int] = field(default_factory=dict)  # value: offset
    cancelled: set[bytes] = field(default_factory=set)
    groups: list[bytes] = field(default_factory=list)
    arrivals: list[tuple[int, bytes, bool]] = field(default_factory=list)  # offset, value, again
    over: bool = False


async def produce(
    process: BrokerProcess, record: Record, rng: random.Random, task_status: trio.TaskStatus[None]
) -> None:
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        task_status.started()
        async with await broker.producer("work", name="p") as producer:
            while not record.over:
                await batch(broker, producer, record, rng)
                await trio.sleep(PAUSE_S)


async def batch(
    broker: escapement.Broker, producer: escapement.Producer, record: Record, rng: random.Random
) -> None:
    """Send the messages of a group twice, cancel or reschedule some, and close the group."""
    group = f"g{len(record.groups)}"
    kinds = rng.choices(["good", "bad", "late"], k=BATCH)
    names = [f"{kind}-{group}-{row}" for row, kind in enumerate(kinds)]
    for _ in range(2):
        await producer.send_many(
            [name.encode() for name in names],
            delay=["1h" if kind == "late" else "100ms" for kind in kinds],
            keys=[rng.choice("abcd") for _ in kinds],
            groups=[group] * BATCH,
            dedup=names,
        )
    for name, id in zip(names, await broker.find("work", names), strict=True):
        assert id is not None
        record.sent[name.encode()] = id.offset
        if name.startswith("late"):
            if rng.random() < 0.5:
                outcomes = await broker.cancel(topic="work", dedup=name)
                record.cancelled.add(name.encode())
                assert outcomes.done.all()
            else:
                (outcome,) = await broker.run_now([id])
                # The client repeats its request if the broker dies before its answer. By then the
                # message is due, so the next broker must assume that it was delivered.
                assert outcome.status in (AmendStatus.DONE, AmendStatus.DELIVERED)
    await producer.close_group(group, "w", FollowUp(group.encode(), "after"))
    record.groups.append(group.encode())


async def consume(
    process: BrokerProcess, record: Record, task_status: trio.TaskStatus[None]
) -> None:
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        task_status.started()
        async with broker.consumer("work", "w") as inbox:
            async for message in inbox:
                record.arrivals.append((message.offset, message.value, message.redelivered))
                failing = message.value.startswith(b"bad")
                await (message.nack() if failing else message.ack())


async def settled(broker: escapement.Broker, record: Record) -> None:
    """Wait until no message is pending, and all dead letters and follow-ups are there."""
    await broker.schedules.pause("s")
    bad = sum(value.startswith(b"bad") for value in record.sent)
    with trio.fail_after(TIMEOUT_S):
        while True:
            (row,) = await broker.admin("subscriptions.list", topic="work")
            schedule = await broker.schedules.get("s")
            if (
                not row["unacknowledged"]
                and len(await broker.admin("dlq.list", **WORK, count=1000)) >= bad
                and len(await in_log(broker, "after")) >= len(record.groups)
                and len(await in_log(broker, "ticks")) >= schedule.published > 0
            ):
                return
            await trio.sleep(0.1)


async def test_confirmed_work_of_every_feature_survives_kills(
    tmp_path: Path,
) -> None:
    """P6, V1, V2, V4, Q9, Q10, B1, B2, B3: each message once, and redeliveries are marked."""
    record, rng = Record(), random.Random(1)
    with broker_process(tmp_path / "data") as process:
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await broker.admin("subscriptions.create", **WORK, policy=POLICY)
            await broker.schedules.create("s", "ticks", b"tick", every="1s", missed="all")
            async with trio.open_nursery() as nursery:
                await nursery.start(consume, process, record)
                await nursery.start(produce, process, record, random.Random(2))
                for _ in range(KILLS):
                    await trio.sleep(rng.uniform(0.5, 1.5))
                    process.kill()
                    await trio.to_thread.run_sync(process.start)
                record.over = True
                await settled(broker, record)
                nursery.cancel_scope.cancel()
            fresh = Counter(offset for offset, _, again in record.arrivals if not again)
            assert max(fresh.values()) == 1, "a redelivery is not marked"
            assert {v for _, v, _ in record.arrivals} == record.sent.keys() - record.cancelled
            dead_letters = await broker.admin("dlq.list", **WORK, count=1000)
            dead_lettered = Counter(one["original_offset"] for one in dead_letters)
            assert dead_lettered == Counter(
                o for v, o in record.sent.items() if v.startswith(b"bad")
            )
            assert Counter(await in_log(broker, "after")) == Counter(record.groups)
            schedule = await broker.schedules.get("s")
            assert len(await in_log(broker, "ticks")) == schedule.published
            assert len(record.sent) == BATCH * len(record.groups) > 0
