"""Everything that a message can need, at once, on a broker that is killed again and again.

Keys in order, dead letters, groups with follow-ups, dedup keys, cancelling, rescheduling and a
schedule, of one topic each, by one producer and one consumer who go on through every kill.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import trio

import escapement
from escapement import AmendStatus, FollowUp
from support.broker_processes import PATIENT, BrokerProcess, broker_process

KILLS = 3
BATCH = 5
TIMEOUT_S = 60
# On a busy machine, two kills in a row may count as attempts of a message that never failed.
POLICY = {"max_deliveries": 6, "min_backoff_ms": 50, "max_backoff_ms": 100, "order": "key"}
WORK = {"topic": "work", "subscription": "w"}


@dataclass
class Told:
    """What was confirmed to the producer, and what the consumer got."""

    sent: dict[bytes, int] = field(default_factory=dict)  # value: offset
    cancelled: set[bytes] = field(default_factory=set)
    groups: list[bytes] = field(default_factory=list)
    arrivals: list[tuple[int, bytes, bool]] = field(default_factory=list)  # offset, value, again
    over: bool = False


async def produce(process: BrokerProcess, told: Told, rng: random.Random) -> None:
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        async with await broker.producer("work", name="p") as producer:
            while not told.over:
                await batch(broker, producer, told, rng)


async def batch(
    broker: escapement.Broker, producer: escapement.Producer, told: Told, rng: random.Random
) -> None:
    """Some messages of a group, sent twice; some are cancelled or moved; the group is closed."""
    group = f"g{len(told.groups)}"
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
        told.sent[name.encode()] = id.offset
        if name.startswith("late"):
            if rng.random() < 0.5:
                outcomes = await broker.cancel(topic="work", dedup=name)
                told.cancelled.add(name.encode())
                assert outcomes.done.all()
            else:
                (outcome,) = await broker.run_now([id])
                # The client asks again if the broker dies before its answer. The message is due
                # by then, so the next broker cannot know that nobody has had it.
                assert outcome.status in (AmendStatus.DONE, AmendStatus.DELIVERED)
    await producer.close_group(group, "w", FollowUp(group.encode(), "after"))
    told.groups.append(group.encode())


async def consume(process: BrokerProcess, told: Told) -> None:
    async with escapement.connect(process.url, settings=PATIENT) as broker:
        async with broker.consumer("work", "w") as inbox:
            async for message in inbox:
                told.arrivals.append((message.offset, message.value, message.redelivered))
                back = message.value.startswith(b"bad")
                await (message.nack() if back else message.ack())


async def settled(broker: escapement.Broker, told: Told) -> None:
    """Wait until everything is done, and what follows from it is where it belongs."""
    await broker.schedules.pause("s")
    bad = sum(value.startswith(b"bad") for value in told.sent)
    with trio.fail_after(TIMEOUT_S):
        while True:
            (row,) = await broker.admin("subscriptions.list", topic="work")
            schedule = await broker.schedules.get("s")
            if (
                not row["unacknowledged"]
                and len(await broker.admin("dlq.list", **WORK, count=1000)) >= bad
                and len(await values(broker, "after")) >= len(told.groups)
                and len(await values(broker, "ticks")) >= schedule.published > 0
            ):
                return
            await trio.sleep(0.1)


async def values(broker: escapement.Broker, topic: str) -> list[bytes]:
    return [message.value async for page in broker.read(topic) for message in page]


async def test_what_was_confirmed_holds_for_every_feature_though_the_broker_is_killed(
    tmp_path: Path,
) -> None:
    """P6, V1, V2, V4, Q9, Q10, B1, B2, B3: each once; what comes again says so."""
    told, rng = Told(), random.Random(1)
    with broker_process(tmp_path / "data") as process:
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await broker.admin("subscriptions.create", **WORK, policy=POLICY)
            await broker.schedules.create("s", "ticks", b"tick", every="1s", missed="all")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(consume, process, told)
                nursery.start_soon(produce, process, told, random.Random(2))
                for _ in range(KILLS):
                    await trio.sleep(rng.uniform(0.5, 1.5))
                    process.kill()
                    await trio.to_thread.run_sync(process.start)
                told.over = True
                await settled(broker, told)
                nursery.cancel_scope.cancel()
            fresh = Counter(offset for offset, _, again in told.arrivals if not again)
            assert max(fresh.values()) == 1, "it came again, unmarked"
            assert {v for _, v, _ in told.arrivals} == told.sent.keys() - told.cancelled
            inbox_entries = await broker.admin("dlq.list", **WORK, count=1000)
            dead_lettered = Counter(inbox_entry["original_offset"] for inbox_entry in inbox_entries)
            assert dead_lettered == Counter(o for v, o in told.sent.items() if v.startswith(b"bad"))
            assert Counter(await values(broker, "after")) == Counter(told.groups)
            schedule = await broker.schedules.get("s")
            assert len(await values(broker, "ticks")) == schedule.published
            assert len(told.sent) == BATCH * len(told.groups) > 0
