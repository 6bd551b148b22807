"""Kills of a broker and of MariaDB while applications fill a message table and consumers empty it.

Real processes, real servers. Writers commit and roll back. The epoch of a row counts its
deliveries, so it shows that no delivery was made twice, or after an acknowledgement.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pymysql
import pytest
import trio

import escapement
from support.database.servers import MysqlServer, private_server
from support.processes.broker import PATIENT, BrokerProcess, broker_process
from support.tables.shops import Shop, comment

ROUNDS: Final = 3
CONSUMERS: Final = 3
TIMEOUT_S: Final = 60
NS_PER_S: Final = 1_000_000_000
SENT: Final = "id|epoch|time_next"
DIRECTIVES: Final = comment(
    ack_wait=1, max_backoff=2, poller_interval=0.1, cache_size=50, message_cols=SENT
)


@dataclass
class Seen:
    """The rows that writers have inserted, and consumers have got."""

    committed: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)  # whose commit got no answer
    delivered: set[tuple[int, int]] = field(default_factory=set)  # with the epoch before
    acked: dict[int, int] = field(default_factory=dict)  # with the epoch at the acknowledgement


def write(shop: Shop, seen: Seen, seed: int, stopped: threading.Event) -> None:
    rng = random.Random(seed)
    while not stopped.is_set():
        with suppress(pymysql.err.MySQLError), shop.session() as cursor:
            while not stopped.is_set():
                ids = []
                for _ in range(rng.randint(1, 4)):
                    due_ns = int(time.time() * NS_PER_S) + rng.randint(0, NS_PER_S // 2)
                    cursor.execute(
                        "INSERT INTO mails (time_next) VALUES (%s)", (rng.choice([0, due_ns]),)
                    )
                    ids.append(int(cursor.lastrowid))
                time.sleep(rng.random() / 10)
                if rng.random() < 0.3:
                    cursor.connection.rollback()
                    continue
                seen.doubtful.update(ids)
                cursor.connection.commit()
                seen.doubtful.difference_update(ids)
                seen.committed.update(ids)
        time.sleep(0.02)  # the server is being restarted


async def consume(
    url: str,
    topic: str,
    shop: Shop,
    seen: Seen,
    rng: random.Random,
    task_status: trio.TaskStatus[None],
) -> None:
    async with (
        escapement.connect(url, settings=PATIENT) as broker,
        broker.consumer(topic, "table", permits=10) as inbox,
    ):
        task_status.started()
        async for message in inbox:
            id, epoch = message.row["id"], message.row["epoch"]
            assert message.row["time_next"] <= time.time() * NS_PER_S, "a row is early"
            assert (id, epoch) not in seen.delivered, "a delivery was made twice"
            seen.delivered.add((id, epoch))
            choice = rng.random()
            if choice < 0.1:
                await inbox.nack([message], "100ms")
            elif choice < 0.95 and await inbox.ack([message], durable=True) == 1:
                with suppress(pymysql.err.MySQLError):  # the server is being restarted
                    (row,) = await trio.to_thread.run_sync(shop.row, id, "epoch")
                    seen.acked[id] = row


async def disturb(
    process: BrokerProcess, server: MysqlServer, kills_server: bool, rng: random.Random
) -> None:
    for _ in range(ROUNDS):
        await trio.sleep(0.4 + rng.random() / 2)
        if kills_server:
            server.kill()
            if rng.random() < 0.5:
                process.kill()
            await trio.sleep(rng.random() / 4)
            await trio.to_thread.run_sync(server.start)
        else:
            process.kill()
        if not process.running:
            await trio.to_thread.run_sync(process.start)


@pytest.mark.parametrize("kills_server", [False, True])
async def test_killed_broker_delivers_each_committed_row(
    tmp_path: Path, kills_server: bool
) -> None:
    """V8, V9."""
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rng, seen, stopped = random.Random(seed), Seen(), threading.Event()
    with private_server() as server:
        server.admin("CREATE DATABASE shop")
        shop = Shop(server.url("shop"))
        topic = shop.create(comment=DIRECTIVES)
        writers = [
            threading.Thread(target=write, args=(shop, seen, seed + n, stopped)) for n in range(2)
        ]
        with broker_process(tmp_path / "data", None, "--tables", shop.url) as process:
            for writer in writers:
                writer.start()
            async with trio.open_nursery() as nursery:
                for number in range(CONSUMERS):
                    own = random.Random(seed + number)
                    await nursery.start(consume, process.url, topic, shop, seen, own)
                try:
                    await disturb(process, server, kills_server, rng)
                finally:
                    stopped.set()
                with trio.fail_after(TIMEOUT_S):
                    while shop.run("SELECT 1 FROM mails WHERE time_acked IS NULL"):  # noqa: ASYNC110
                        await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        for writer in writers:
            writer.join()
        check(shop, seen)


def check(shop: Shop, seen: Seen) -> None:
    epochs = dict(shop.run("SELECT id, epoch FROM mails"))
    assert len(epochs) > 20
    assert seen.committed <= epochs.keys() <= seen.committed | seen.doubtful
    assert {id for id, _ in seen.delivered} == epochs.keys()
    later = {id: (epoch, epochs[id]) for id, epoch in seen.acked.items() if epochs[id] != epoch}
    assert not later, f"rows were sent after their acknowledgement: {later}"
