"""Memory follows the configuration, not the backlog, and every message is delivered.

The tests read the broker's resident memory from the kernel, with absent and slow consumers, small
and large messages, and many topics.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import numpy as np
import pytest
import trio

import escapement
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until

MIB: Final = 1 << 20
TIMEOUT_S: Final = 120


async def receive_all(
    client: escapement.Broker, count: int, *, permits: int = 5_000, **options: str
) -> list[int]:
    """Receive and acknowledge ``count`` different messages, and return their order of delivery."""
    order: list[int] = []
    seen: set[int] = set()
    async with client.consumer("t", "s", permits=permits, **options) as inbox:
        with trio.move_on_after(TIMEOUT_S):
            while len(seen) < count:
                batch = await inbox.next_batch()
                assert batch is not None
                assert (batch.due_ms <= time.time_ns() // 1_000_000).all()
                order += batch.offsets.tolist()
                seen.update(batch.offsets.tolist())
                await inbox.ack(batch.offsets)
        await inbox.flush_acks()
    assert len(seen) == count, f"{count - len(seen)} of {count} were not delivered"
    return order


async def test_backlog_of_ten_times_the_ready_limit_is_delivered(
    tmp_path: Path, mysql_url: str
) -> None:
    """Invariant 4: messages with past due times arrive without any consumer."""
    ready, rounds = 1_000, 40
    chance = np.random.default_rng(7)
    with broker_process(tmp_path / "broker", mysql_url, "--ready-messages", str(ready)) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            await client.admin(
                "namespaces.enable_delayed_message", namespace="public/default", tick_ms=50
            )
            producer = await client.producer("t")
            total = 10 * ready
            await producer.send_many([b"x" * 50] * total, delay=chance.integers(0, 1_500, total))
            for _ in range(rounds):
                now_ms = time.time_ns() // 1_000_000
                past_ms = now_ms - chance.integers(0, 3_600_000, 50)
                await producer.send_many([b"past"] * 50, at=past_ms)
                total += 50
                await trio.sleep(0.04)
            # A consumer that leaves soon, while more messages arrive.
            async with client.consumer("t", "s", permits=700) as inbox:
                batch = await inbox.next_batch()
                assert batch is not None
                await producer.send_many([b"past"] * 50, at=past_ms)
                total += 50
            order = await receive_all(client, total)
            assert len(order) >= total
            assert broker.starts == 1


async def test_absent_and_slow_consumers_leave_memory_bounded(tmp_path: Path) -> None:
    """Invariant 9: 300,000 messages of 300 bytes are pending with 16 MiB of index memory."""
    count = 300_000
    options = ("--index-memory", "16MiB", "--ready-messages", "5000")
    with broker_process(tmp_path / "broker", None, *options) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            await (await client.producer("warm")).send(b"up")
            before = broker.rss_bytes()
            most = before
            producer = await client.producer("t")
            delays = np.random.default_rng(3).integers(0, 1_000, 5_000)
            async with client.consumer("t", "s", permits=100) as slow:
                for _ in range(count // 5_000):
                    await producer.send_many([b"x" * 300] * 5_000, delay=delays)
                    most = max(most, broker.rss_bytes())
                assert await slow.next_batch() is not None
            order = await receive_all(client, count)
            most = max(most, broker.rss_bytes())
            assert len(order) < count + 5_000
            # Payloads alone are 90 MiB. Index and cache have bounds of 16 and 32 MiB. The
            # rest is for frames, group commits and checkpoints in progress.
            grown = (most - before) / MIB
            print(f"resident memory grew by {grown:.0f} MiB to {most / MIB:.0f} MiB")
            assert grown < 160


async def test_large_messages_neither_stall_nor_fill_memory(tmp_path: Path) -> None:
    """Invariant 9: permits count messages, but memory is bounded in bytes."""
    count, size = 240, 512 * 1024
    with broker_process(tmp_path / "broker") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            producer = await client.producer("t")
            for _ in range(count // 8):
                await producer.send_many([bytes(size)] * 8)
        broker.kill()
        broker.start()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            most: list[int] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch_memory, broker, most)
                order = await receive_all(client, count, permits=1_000)
                nursery.cancel_scope.cancel()
            assert len(order) <= 2 * count
            print(f"resident memory reached {max(most) / MIB:.0f} MiB")
            assert max(most) < 400 * MIB


async def watch_memory(broker: BrokerProcess, most: list[int]) -> None:
    while True:
        most.append(broker.rss_bytes())
        await trio.sleep(0.02)


async def test_exclusive_reads_the_log_in_order_and_ignores_delays(tmp_path: Path) -> None:
    """P7: also across a kill, after which it continues at its position."""
    with broker_process(tmp_path / "broker") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin(
                "subscriptions.create", topic="t", subscription="s", kind="exclusive"
            )
            producer = await client.producer("t")
            delays = np.random.default_rng(5).integers(0, 3_600_000, 5_000)
            await producer.send_many([b"x"] * 5_000, delay=delays)
            async with client.consumer("t", "s", kind="exclusive", permits=500) as inbox:
                got: list[int] = []
                while len(got) < 2_000:
                    batch = await inbox.next_batch()
                    assert batch is not None
                    got += batch.offsets.tolist()
                    await inbox.ack(batch.offsets, durable=True)
                assert got == list(range(len(got)))
                with pytest.raises(escapement.Conflict):
                    async with client.consumer("t", "s", kind="exclusive"):
                        pass
            broker.kill()
            broker.start()
            async with client.consumer("t", "s", kind="exclusive", permits=500) as inbox:
                rest: list[int] = []
                while len(got) + len(rest) < 5_000:
                    batch = await inbox.next_batch()
                    assert batch is not None
                    rest += batch.offsets.tolist()
                    await inbox.ack(batch.offsets)
            assert rest == list(range(len(got), 5_000))


async def test_failover_continues_without_a_gap(tmp_path: Path) -> None:
    """P7: three consumers take over in turn. Unacknowledged messages are redelivered."""
    count = 3_000
    with broker_process(tmp_path / "broker") as broker:
        done: set[int] = set()
        by_consumer: list[list[int]] = []

        async def one(client: escapement.Broker, most: int) -> None:
            """Acknowledge up to ``most`` messages, and disconnect with more messages in flight."""
            async with client.consumer("t", "s", kind="failover", permits=200) as inbox:
                mine: list[int] = []
                by_consumer.append(mine)
                while len(done) < count:
                    batch = await inbox.next_batch(timeout_s=0.2)
                    if batch is None:
                        continue
                    mine += batch.offsets.tolist()
                    await trio.sleep(0.01)
                    if len(mine) > most:
                        return
                    await inbox.ack(batch.offsets, durable=True)
                    done.update(batch.offsets.tolist())

        async def member(most: int) -> None:
            async with escapement.connect(broker.url, settings=PATIENT) as client:
                await one(client, most)

        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s", kind="failover")
            producer = await client.producer("t")
            delays = np.random.default_rng(5).integers(0, 3_600_000, count)
            await producer.send_many([b"x"] * count, delay=delays)
            with trio.fail_after(TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    for most in (700, 900, count * 2):
                        nursery.start_soon(member, most)
                        await trio.sleep(0.1)
        assert done == set(range(count))
        for mine in by_consumer:
            assert mine == sorted(mine), "out of order within one consumer"


@pytest.mark.long
async def test_broker_with_a_hundred_thousand_topics_starts_and_delivers(tmp_path: Path) -> None:
    """Invariant 9: passive topics cost no task."""
    count = 100_000
    with broker_process(tmp_path / "broker") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            began = time.monotonic()

            async def create(numbers: range) -> None:
                for number in numbers:
                    await client.admin("topics.create", topic=f"many/of/t{number}")

            async with trio.open_nursery() as nursery:
                for first in range(64):
                    nursery.start_soon(create, range(first, count, 64))
            print(f"{count} topics created in {time.monotonic() - began:.1f} s")
            await client.admin("subscriptions.create", topic="many/of/t77", subscription="s")
            await (await client.producer("many/of/t77")).send(b"hello", delay=(1, "s"))
        broker.kill()
        took = broker.start()
        print(f"started in {took:.1f} s, {broker.rss_bytes() / MIB:.0f} MiB")
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            async with client.consumer("many/of/t77", "s") as inbox:
                message = await inbox.receive(timeout_s=10)
                assert message is not None
                assert message.value == b"hello"
        await until(lambda: broker.running)
