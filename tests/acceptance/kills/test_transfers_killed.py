"""Transfers between accounts under kills: each message takes effect exactly once.

Consumers are processes of their own. They move money in transactions that acknowledge the message,
while the broker, the database server and the consumers themselves are killed at random times, and
consumers are suspended until the broker has taken their messages back. At the end each account has
the balance that the messages sum up to.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio

import escapement
from support.database.servers import MysqlServer, private_server
from support.outbox.outboxes import Application
from support.processes import transfers
from support.processes.broker import PATIENT, BrokerProcess, broker_process
from support.processes.transfers import SUBSCRIPTION, TOPIC

CONSUMERS: Final = 3
ACCOUNTS: Final = 20
BATCH: Final = 500
# Longer than the ack wait of the consumers.
SUSPENDED_S: Final = 2.5


class ConsumerProcess:
    """One consumer. ``start`` works again after a kill."""

    def __init__(self, broker_url: str, database_url: str, refused: Path, seed: int) -> None:
        self._arguments = [broker_url, database_url, str(refused)]
        self._seed = seed
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._seed += 1
        command = [sys.executable, str(Path(transfers.__file__)), *self._arguments]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        self.process = subprocess.Popen(
            [*command, str(self._seed)], env=environment, stdout=subprocess.DEVNULL
        )

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, "the consumer has ended by itself"
        self.process.kill()
        self.process.wait()

    async def suspend(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        await trio.sleep(SUSPENDED_S)
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def consumer_processes(
    broker: BrokerProcess, application: Application, refused: Path, seed: int
) -> Iterator[list[ConsumerProcess]]:
    refused.touch()
    consumers = [
        ConsumerProcess(broker.url, application.url, refused, seed + 1000 * n)
        for n in range(CONSUMERS)
    ]
    try:
        for consumer in consumers:
            consumer.start()
        yield consumers
    finally:
        for consumer in consumers:
            if consumer.process is not None:
                consumer.process.kill()
                consumer.process.wait()


def install(application: Application) -> None:
    application.install()
    application.run("CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)")
    application.run("CREATE TABLE effects (number INT NOT NULL)")
    for account in range(ACCOUNTS):
        application.run("INSERT INTO accounts VALUES (%s, 0)", account)


async def send(broker: escapement.Broker, count: int, rng: random.Random) -> Counter[int]:
    """Send transfers, and return the balance of each account after all of them."""
    balances: Counter[int] = Counter(dict.fromkeys(range(ACCOUNTS), 0))
    async with await broker.producer(TOPIC, name="p") as producer:
        for first in range(0, count, BATCH):
            payloads = []
            for number in range(first, min(first + BATCH, count)):
                source, to = rng.sample(range(ACCOUNTS), 2)
                amount = rng.randint(1, 1_000_000)
                balances[source] -= amount
                balances[to] += amount
                transfer = {"number": number, "from": source, "to": to, "amount": amount}
                payloads.append(json.dumps(transfer).encode())
            await producer.send_many(payloads)
    return balances


class Killer:
    """Kills or suspends a process at a time, at random, and lets it go on."""

    def __init__(
        self,
        server: MysqlServer,
        broker: BrokerProcess,
        consumers: list[ConsumerProcess],
        seed: int,
    ) -> None:
        self._server = server
        self._broker = broker
        self._consumers = consumers
        self._rng = random.Random(seed)
        self.done: Counter[str] = Counter()

    async def strike(self, pause_s: float) -> None:
        """Let the processes work for up to ``pause_s``, then kill one or two of them."""
        kinds = ["consumer", "consumer", "suspended consumer", "broker", "server", "both"]
        # The first strikes are of each kind once.
        left = [kind for kind in kinds if kind not in self.done]
        kind = self._rng.choice(left or kinds)
        self.done[kind] += 1
        await trio.sleep(0.05 + self._rng.random() * pause_s)
        consumer = self._rng.choice(self._consumers)
        if kind == "suspended consumer":
            await consumer.suspend()
        if kind == "consumer":
            consumer.kill()
            consumer.start()
        if kind in ("broker", "both"):
            self._broker.kill()
        if kind in ("server", "both"):
            self._server.kill()
            await trio.to_thread.run_sync(self._server.start)
        if kind in ("broker", "both"):
            await trio.to_thread.run_sync(self._broker.start)


async def unacknowledged(broker: escapement.Broker) -> int:
    (row,) = await broker.admin("subscriptions.list", topic=TOPIC)
    return int(row["unacknowledged"])


async def transfers_under_kills(data: Path, messages: int, log: str, pause_s: float) -> None:
    seed = int(os.environ.get("ESCAPEMENT_TEST_SEED") or secrets.randbelow(1 << 30))
    print(f"ESCAPEMENT_TEST_SEED={seed}")
    began_s = time.monotonic()
    with private_server() as server:
        server.admin("CREATE DATABASE bank")
        application = Application(server.url("bank"))
        install(application)
        log_url = server.url("escapement") if log == "same server" else None
        refused = data / "refused"
        with broker_process(data / "broker", log_url, "--outbox", application.url) as process:
            async with escapement.connect(process.url, settings=PATIENT) as broker:
                await broker.admin(
                    "subscriptions.create",
                    topic=(await broker.admin("topics.create", topic=TOPIC))["topic"],
                    subscription=SUBSCRIPTION,
                    position="earliest",
                )
                with consumer_processes(process, application, refused, seed) as consumers:
                    balances = await send(broker, messages, random.Random(seed))
                    killer = Killer(server, process, consumers, seed)
                    while await unacknowledged(broker) or len(killer.done) < 5:
                        await killer.strike(pause_s)
                    print(
                        f"{messages} messages, {killer.done.total()} kills {dict(killer.done)}, "
                        f"{refused.stat().st_size} refused as processed before, "
                        f"{time.monotonic() - began_s:.0f} s"
                    )
                    await check(application, broker, messages, balances)
                    assert refused.stat().st_size
            assert "Traceback" not in process.complaints(), process.complaints()


async def check(
    application: Application, broker: escapement.Broker, messages: int, balances: Counter[int]
) -> None:
    assert await unacknowledged(broker) == 0
    effects = Counter(number for (number,) in application.run("SELECT number FROM effects"))
    assert effects == Counter(range(messages))
    assert dict(application.run("SELECT id, balance FROM accounts")) == dict(balances)
    with trio.fail_after(30):
        unlearned = "SELECT COUNT(*) FROM escapement_acks WHERE learned_at IS NULL"
        while application.run(unlearned)[0][0]:  # noqa: ASYNC110
            await trio.sleep(0.1)
    assert application.run("SELECT COUNT(*) FROM escapement_acks")[0][0] == messages


@pytest.mark.parametrize("log", ["same server", "sqlite"])
async def test_each_transfer_takes_effect_exactly_once_under_kills(
    log: str, tmp_path: Path
) -> None:
    """V1, V2, V7, V17."""
    await transfers_under_kills(tmp_path, 2_000, log, 0.5)


@pytest.mark.long
async def test_each_of_a_hundred_thousand_transfers_takes_effect_exactly_once(
    tmp_path: Path,
) -> None:
    """V1, V2, V7, V17."""
    await transfers_under_kills(tmp_path, 100_000, "same server", 2.0)
