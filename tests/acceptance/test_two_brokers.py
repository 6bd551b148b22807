"""Two brokers on one database when the network, the clocks or the data directories are wrong."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

import escapement
from escapement import AmendStatus, MessageId
from escapement.errors import AlreadyExists
from support.database.servers import MysqlServer
from support.faults.tcp_proxy import lossy_proxy
from support.processes.broker import PATIENT, BrokerProcess, until

LIMITS: Final[dict[str, Any]] = {"lease_ms": 1_500, "checkpoint_interval_s": 0.2}
HOUR_MS: Final = 3_600_000
TIMEOUT_S: Final = 60
TOPIC: Final = "public/default/t"


@pytest.fixture
def name(mysql_to_break: MysqlServer) -> Iterator[str]:
    """An empty database on a server whose port is known."""
    name = f"escapement_two_{uuid.uuid4().hex[:8]}"
    mysql_to_break.admin(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    mysql_to_break.admin(f"DROP DATABASE {name}")


@pytest.fixture
def two(
    tmp_path: Path, mysql_to_break: MysqlServer, name: str
) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """Two brokers on the database, not started."""
    url = mysql_to_break.url(name)
    brokers = [BrokerProcess(tmp_path / one, url, limits=LIMITS) for one in ("first", "second")]
    yield brokers[0], brokers[1]
    for broker in brokers:
        broker.remove()


OWNS: Final = "the broker owns the log"
SEES_ANOTHER: Final = "Add bundles for new topics"


async def until_it_owns(broker: BrokerProcess) -> None:
    """Start a broker until it is not refused, and wait until it has taken the topics."""
    before = len(broker.lines(OWNS))
    while not await began(broker):
        assert "lease_held" in broker.complaints().splitlines()[-1]
    await until(lambda: len(broker.lines(OWNS)) > before)


async def began(broker: BrokerProcess) -> bool:
    """Start a broker; return whether it accepts connections, and does not end."""
    broker.launch()
    await until(lambda: broker.ready() or not broker.running)
    return broker.running


async def publish(client: escapement.Broker, count: int, delay_ms: int = 0) -> set[int]:
    """Create the subscription, publish messages, and return their offsets."""
    with suppress(AlreadyExists):
        await client.admin("subscriptions.create", topic="t", subscription="s")
    return await send(client, count, delay_ms)


async def send(client: escapement.Broker, count: int, delay_ms: int = 0) -> set[int]:
    """Publish messages, also while the client changes brokers, and return their offsets."""
    producer = await client.producer("t")
    receipts = await producer.send_many([b"m"] * count, delay=np.full(count, delay_ms))
    return set(receipts.offsets.tolist())


async def take(client: escapement.Broker, want: set[int]) -> dict[int, bool]:
    """Receive exactly these messages and acknowledge them; return which are marked as repeated."""
    got: dict[int, bool] = {}
    async with client.consumer("t", "s", permits=1_000) as inbox:
        with trio.fail_after(TIMEOUT_S):
            while got.keys() < want:
                batch = await inbox.next_batch()
                assert batch is not None
                again = (batch.redelivered | (batch.attempts > 1)).tolist()
                got |= dict(zip(batch.offsets.tolist(), again, strict=True))
                await inbox.ack(batch.offsets, durable=True)
        assert got.keys() == want, f"unwanted: {got.keys() - want}"
        assert await inbox.next_batch(timeout_s=0.5) is None, "a message came that was finished"
    return got


async def test_broker_cut_off_from_its_database_is_replaced_and_sends_its_clients_away(
    tmp_path: Path, mysql_to_break: MysqlServer, name: str, two: tuple[BrokerProcess, BrokerProcess]
) -> None:
    """Invariant 8, B8, Q8: only the network between one broker and the database fails."""
    second = two[1]
    got: list[tuple[float, int, bool]] = []
    with lossy_proxy(mysql_to_break.port) as way:
        url = mysql_to_break.url(name, port=way.port)
        first = BrokerProcess(tmp_path / "cut", url, limits=LIMITS)
        try:
            first.start()
            second.start()
            async with escapement.connect(first.url, settings=PATIENT) as client:
                await client.admin("subscriptions.create", topic="t", subscription="s")
                producer = await client.producer("t")
                delays = np.linspace(0, 5_000, 400).astype(np.int64)
                receipts = await producer.send_many([b"m"] * 400, delay=delays)

                async def watch() -> None:
                    async with client.consumer("t", "s", permits=1_000) as inbox:
                        async for batch in inbox.batches():
                            columns = batch.offsets.tolist(), batch.redelivered.tolist()
                            got.extend(
                                (time.monotonic(), *row) for row in zip(*columns, strict=True)
                            )

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch)
                    await until(lambda: bool(got))
                    # The first broker sees the second one, and so can name it to the client.
                    await until(lambda: bool(first.lines(SEES_ANOTHER)))
                    way.cut()
                    cut_s = time.monotonic()
                    await until(lambda: bool(second.lines(OWNS)))
                    taken_over_s = time.monotonic()
                    # The first broker has sent the client to the second one.
                    await until(lambda: any(again for _, _, again in got))
                    nursery.cancel_scope.cancel()
                marked = await take(client, set(receipts.offsets.tolist()))
                way.mend()
                await until(lambda: bool(first.lines("the broker of bundle 0 ends")))
                await take(client, await send(client, 10))
            assert first.running
            assert second.running
        finally:
            first.remove()
    by_first = [(at_s, offset) for at_s, offset, again in got if not again and at_s < taken_over_s]
    assert any(at_s > cut_s for at_s, _ in by_first), "it delivers while it has the lease"
    assert all(marked[offset] for _, offset in by_first), "a redelivery is not marked"


async def test_clocks_an_hour_apart_change_no_owner_and_repeat_no_finished_message(
    two: tuple[BrokerProcess, BrokerProcess],
) -> None:
    """B8, V2, B1, invariants 2 and 3: leases expire by the database's clock alone."""
    first, second = two
    second.clock_ahead_ms = HOUR_MS
    first.start()
    async with escapement.connect(first.url, settings=PATIENT) as client:
        await take(client, await publish(client, 20))
        soon = await publish(client, 50, delay_ms=HOUR_MS // 2)
        late = await publish(client, 30, delay_ms=2 * HOUR_MS)
        dropped = sorted(soon)[:10]
        outcomes = await client.cancel([MessageId(TOPIC, offset) for offset in dropped])
        assert all(one.status is AmendStatus.DONE for one in outcomes)
        second.start()
        await trio.sleep(2 * LIMITS["lease_ms"] / 1000)
        assert not second.lines(OWNS), "a clock that is ahead took a valid lease"
        assert second.lines("s ahead of that of the database")
        assert not first.lines("that of the database")
        first.kill()
        await until(lambda: bool(second.lines(OWNS)))
    async with escapement.connect(second.url, settings=PATIENT) as client:
        # By the clock of the second broker, these have been due for half an hour.
        marked = await take(client, soon - set(dropped))
        assert all(marked.values()), "the first broker may have delivered them"
        began_s = time.monotonic()
        await take(client, await publish(client, 5, delay_ms=1_500))
        assert time.monotonic() - began_s >= 1.5
        later = await publish(client, 5, delay_ms=HOUR_MS // 2)
    second.kill()
    await until_it_owns(first)
    async with escapement.connect(first.url, settings=PATIENT) as client:
        await take(client, await publish(client, 20))  # and nothing else
        await client.run_now([MessageId(TOPIC, offset) for offset in sorted(late | later)])
        await take(client, late | later)


async def test_old_copy_of_a_data_directory_is_brought_up_to_date(
    two: tuple[BrokerProcess, BrokerProcess],
) -> None:
    """P5, V2, B1, B8, invariant 7: a copy has the identity of its original, and an old index."""
    first, copy = two
    first.start()
    async with escapement.connect(first.url, settings=PATIENT) as client:
        acked = await publish(client, 100)
        due = await publish(client, 100, delay_ms=2_000)
        # The first manifest is written after the segments that it names.
        await until((first.index / "MANIFEST").exists)
        await until(lambda: any(first.index.glob("*.segment")))
        first.pause()  # so that no file changes during the copy
        shutil.copytree(first.data, copy.data, dirs_exist_ok=True)
        first.resume()
        manifest = (first.index / "MANIFEST").read_bytes()
        await take(client, acked)
        dropped = sorted(due)[:10]
        await client.cancel([MessageId(TOPIC, offset) for offset in dropped])
        due |= await publish(client, 100, delay_ms=2_000)
        await until(lambda: (first.index / "MANIFEST").read_bytes() != manifest)
        first.kill()
        await until_it_owns(copy)
    async with escapement.connect(copy.url, settings=PATIENT) as client:
        await take(client, due - set(dropped))
        assert not await began(first), "two processes have one identity"
        # Without its data directory it is another broker, which stands by.
        shutil.rmtree(first.data)
        first.data.mkdir()
        assert await began(first)
        more = await publish(client, 10)
        copy.kill()
        await until(lambda: len(first.lines(OWNS)) == 2)
    async with escapement.connect(first.url, settings=PATIENT) as client:
        await take(client, more)
