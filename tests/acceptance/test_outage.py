"""Outages of the database: nothing confirmed is lost, and work continues.

The database is killed, frozen or read-only. The broker is not restarted: the same process continues
when the database is back.
"""

from __future__ import annotations

import resource
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import escapement
from escapement.broker.limits import DEFAULT_LIMITS
from escapement.broker.server import LEAVE_S
from escapement.errors import StorageUnavailable
from support.database.servers import MysqlServer
from support.processes.broker import PATIENT, broker_process, until

LEASE_MS: Final = 3_000
LIMITS: Final[dict[str, Any]] = {"lease_ms": LEASE_MS, "checkpoint_interval_s": 0.5}
USER: Final = "broker"
TIMEOUT_S: Final = 60
# This many messages must be overdue to show that dispatch has stopped.
OVERDUE: Final = 200


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def url(mysql_to_break: MysqlServer) -> Iterator[str]:
    """A database on a server that tests may break, with a user that ``read_only`` affects."""
    name = f"escapement_outage_{uuid.uuid4().hex[:8]}"
    mysql_to_break.admin(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    mysql_to_break.admin(f"CREATE OR REPLACE USER {USER}@'%' IDENTIFIED BY 'secret'")
    mysql_to_break.admin(f"GRANT ALL ON {name}.* TO {USER}@'%'")
    yield mysql_to_break.url(name, USER, "secret")
    mysql_to_break.restore()
    mysql_to_break.admin("SET GLOBAL read_only = 0")
    mysql_to_break.admin(f"DROP DATABASE {name}")


class Watcher:
    """A consumer that acknowledges all messages and records them."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.latest_due_ms = 0
        self.repeated = 0  # redelivered and marked

    async def run(
        self, client: escapement.Broker, task_status: trio.TaskStatus[escapement.Inbox]
    ) -> None:
        async with client.consumer("t", "s", permits=10_000) as inbox:
            task_status.started(inbox)
            async for batch in inbox.batches():
                assert (batch.due_ms <= now_ms()).all()
                known = np.isin(batch.offsets, self.offsets)
                assert batch.redelivered[known].all(), "a redelivery is not marked"
                self.repeated += int(known.sum())
                self.offsets += batch.offsets.tolist()
                self.latest_due_ms = max(self.latest_due_ms, int(batch.due_ms.max()))
                await inbox.ack(batch.offsets)

    async def check_dispatch_has_stopped(self, due_ms: np.ndarray) -> None:
        """Check that overdue messages are not delivered.

        Call this after a reply on the same connection has shown that dispatch has stopped.

        Args:
          due_ms: due time of each message, or some time later.
        """
        # Messages sent before that reply have arrived. The consumer handles them now.
        await wait_all_tasks_blocked()
        before = len(self.offsets)
        await until(lambda: (due_ms <= now_ms()).sum() >= before + OVERDUE, TIMEOUT_S)
        assert len(self.offsets) == before, "a message was delivered during the outage"


async def tick_finely(client: escapement.Broker) -> None:
    await client.admin("namespaces.create", namespace="public/default")
    await client.admin("namespaces.enable_delayed_message", namespace="public/default", tick_ms=10)


async def refusal(producer: escapement.Producer) -> StorageUnavailable:
    """Publish until the broker refuses, and return its error. Timeouts do not count."""
    with trio.fail_after(TIMEOUT_S):
        while True:
            try:
                await producer.send(b"hasty")
            except StorageUnavailable as error:
                return error
            except escapement.Disconnected:
                continue
            raise AssertionError("the database accepted a write during its outage")


async def until_the_lease_has_run_out(client: escapement.Broker) -> None:
    with trio.fail_after(TIMEOUT_S):
        while True:
            # The broker has closed a connection with unsent messages by then.
            with suppress(escapement.Disconnected):
                if not (await client.admin("broker.stats"))["lease_held"]:
                    return
            await trio.sleep(0.05)


async def test_killed_database_loses_nothing_and_work_continues(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str
) -> None:
    """Q8, invariant 1: the rule "When MySQL fails", unreachable."""
    watcher = Watcher()
    # Messages that fall due during the outage must be delivered before the lease ends.
    limits = LIMITS | {"lease_ms": 2 * LEASE_MS}
    with broker_process(tmp_path / "broker", url, limits=limits) as broker:
        pid = broker.process.pid
        async with (
            escapement.connect(broker.url, settings=PATIENT) as client,
            trio.open_nursery() as nursery,
        ):
            await tick_finely(client)
            inbox = await nursery.start(watcher.run, client)
            hasty = await client.producer("t", send_timeout=(600, "ms"))
            patient = await client.producer("t", send_timeout=(60, "s"))
            delays = np.linspace(0, 12_000, 6_000).astype(np.int64)
            receipts = await patient.send_many([b"m"] * 6_000, delay=delays)
            confirmed = set(receipts.offsets.tolist())
            due_ms = now_ms() + delays
            await until(lambda: len(watcher.offsets) >= OVERDUE, TIMEOUT_S)
            mysql_to_break.kill()
            killed_ms = now_ms()
            with pytest.raises((StorageUnavailable, escapement.Disconnected)) as refused:
                await hasty.send(b"hasty")
            assert refused.value.retryable
            waiting = await patient.submit(b"patient")
            # Due messages are delivered while the broker holds its lease.
            await until(lambda: watcher.latest_due_ms > killed_ms, TIMEOUT_S)
            with trio.move_on_after(0.3) as timeout:
                await inbox.ack(np.array([0], np.int64), durable=True)
                await inbox.ack(np.array([max(watcher.offsets)], np.int64), durable=True)
            assert timeout.cancelled_caught, "an acknowledgement was confirmed during the outage"
            await until_the_lease_has_run_out(client)
            await watcher.check_dispatch_has_stopped(due_ms)
            mysql_to_break.start()
            receipt = await waiting
            assert receipt.id is not None
            confirmed.add(receipt.id.offset)
            await until(lambda: set(watcher.offsets) >= confirmed, TIMEOUT_S)
            await inbox.flush_acks()
            await patient.send(b"again")
            nursery.cancel_scope.cancel()
        if "the lease has ended: cutting off" not in broker.complaints():
            assert not watcher.repeated, "messages were redelivered although no connection was lost"
        assert broker.running
        assert broker.process.pid == pid
        broker.kill()
        broker.start()
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            async with client.consumer("t", "s") as inbox:
                message = await inbox.receive(timeout_s=3)
                if message is not None:  # the last message had no consumer
                    assert message.value in (b"again", b"hasty")
        assert "Traceback" not in broker.complaints()


async def test_a_read_only_server_stops_dispatch_until_it_takes_writes(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str
) -> None:
    """Q8, invariant 1: the rule "When MySQL fails", read-only."""
    watcher = Watcher()
    with broker_process(tmp_path / "broker", url, limits=LIMITS) as broker:
        async with (
            escapement.connect(broker.url, settings=PATIENT) as client,
            trio.open_nursery() as nursery,
        ):
            await tick_finely(client)
            inbox = await nursery.start(watcher.run, client)
            hasty = await client.producer("t", send_timeout=(600, "ms"))
            patient = await client.producer("t", send_timeout=(60, "s"))
            delays = np.linspace(0, 5_000, 2_000).astype(np.int64)
            receipts = await patient.send_many([b"m"] * 2_000, delay=delays)
            due_ms = now_ms() + delays
            await until(lambda: bool(watcher.offsets), TIMEOUT_S)
            mysql_to_break.admin("SET GLOBAL read_only = 1")
            refused = await refusal(hasty)
            assert refused.code == "storage_read_only"
            assert refused.retryable
            waiting = await patient.submit(b"patient")
            with trio.move_on_after(0.5) as timeout:
                await inbox.ack(np.arange(1_900, 1_905), durable=True)
            assert timeout.cancelled_caught, "an acknowledgement was confirmed while read-only"
            await watcher.check_dispatch_has_stopped(due_ms)
            mysql_to_break.admin("SET GLOBAL read_only = 0")
            assert (await waiting).id is not None
            want = set(receipts.offsets.tolist()) - set(range(1_900, 1_905))
            await until(lambda: set(watcher.offsets) >= want, TIMEOUT_S)
            await patient.send(b"again")
            await inbox.flush_acks()
            nursery.cancel_scope.cancel()
        assert len(watcher.offsets) == len(set(watcher.offsets)), "a message was delivered twice"
        assert broker.running
        assert "Traceback" not in broker.complaints()


async def test_broker_waits_for_a_frozen_database(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str
) -> None:
    """Q8: the database does not answer for longer than a lease, and then continues."""
    with broker_process(tmp_path / "broker", url, limits=LIMITS) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            producer = await client.producer("t", send_timeout=(60, "s"))
            async with client.consumer("t", "s") as inbox:
                await producer.send(b"before")
                async with await anext(inbox) as message:
                    assert message.value == b"before"
                await inbox.flush_acks()
                mysql_to_break.pause()
                waiting = [await producer.submit(b"%d" % number) for number in range(100)]
                newcomer = client.consumer("other", "s")
                with trio.move_on_after(1.0):
                    async with newcomer:
                        pass
                await trio.sleep(LEASE_MS / 1000)
                mysql_to_break.resume()
                for pending in waiting:
                    await pending
                with trio.fail_after(TIMEOUT_S):
                    got = [(await anext(inbox)).value for _ in range(100)]
                assert sorted(got) == sorted(b"%d" % number for number in range(100))
            with trio.fail_after(TIMEOUT_S):
                async with client.consumer("other", "s") as other:
                    await (await client.producer("other")).send(b"hello")
                    assert (await anext(other)).value == b"hello"
        assert "Traceback" not in broker.complaints()


async def test_a_stop_does_not_wait_for_a_database_that_hangs(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str
) -> None:
    """The stop timeout ends the broker with exit code 0, without losing messages.

    By default this timeout and the time to leave are less than ten seconds together.
    """
    assert DEFAULT_LIMITS.stop_timeout_s + LEAVE_S < 10
    with broker_process(tmp_path / "broker", url, limits={"stop_timeout_s": 2.0}) as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            producer = await client.producer("t")
            await producer.send(b"confirmed")
            mysql_to_break.pause()
            await producer.submit(b"under way")
            assert await trio.to_thread.run_sync(broker.stop) == 0
            assert "the database does not answer: stopping without it" in broker.complaints()
            mysql_to_break.resume()
            await trio.to_thread.run_sync(broker.start)
            async with client.consumer("t", "s") as inbox:
                found = [await inbox.receive(), await inbox.receive()]
            # The client may repeat the second publish while the first message is read from disk.
            assert {message.value for message in found} == {b"confirmed", b"under way"}


async def test_read_only_database_is_noticed_without_writes(
    tmp_path: Path, mysql_to_break: MysqlServer, url: str
) -> None:
    """Q8: the renewal of the lease notices it long before the lease expires."""
    limits = LIMITS | {"lease_ms": 15_000, "checkpoint_interval_s": 3_600}
    got: list[int] = []
    with broker_process(tmp_path / "broker", url, limits=limits) as broker:
        async with (
            escapement.connect(broker.url, settings=PATIENT) as client,
            trio.open_nursery() as nursery,
        ):
            await tick_finely(client)
            producer = await client.producer("t")
            delays = np.linspace(0, 60_000, 6_000).astype(np.int64)
            await producer.send_many([b"m"] * 6_000, delay=delays)

            async def watch() -> None:
                """Receive messages without acknowledging them."""
                async with client.consumer("t", "s", permits=10_000) as inbox:
                    async for batch in inbox.batches():
                        got.extend(batch.offsets.tolist())

            async def database_is(state: str) -> dict[str, Any]:
                while True:
                    stats: dict[str, Any] = await client.admin("broker.stats")
                    if stats["database"] == state:
                        return stats
                    await trio.sleep(0.05)

            nursery.start_soon(watch)
            await until(lambda: bool(got))
            mysql_to_break.admin("SET GLOBAL read_only = 1")
            with trio.fail_after(TIMEOUT_S):
                stats = await database_is("read_only")
            assert stats["lease_held"]
            # Messages sent before that reply have arrived. The consumer handles them now.
            await wait_all_tasks_blocked()
            stopped = len(got)
            await trio.sleep(1.0)
            assert len(got) == stopped, "delivered while read-only"
            mysql_to_break.admin("SET GLOBAL read_only = 0")
            await until(lambda: len(got) > stopped)
            await database_is("up")
            nursery.cancel_scope.cancel()
        assert len(got) == len(set(got)), "a message was delivered twice"
        assert "Traceback" not in broker.complaints()


async def test_sqlite_whose_commits_fail_is_reported_down(tmp_path: Path) -> None:
    """Reads and new connections work, and no file can grow, as on a disk that fails."""
    unlimited = resource.RLIM_INFINITY
    with broker_process(tmp_path / "broker", limits={"lease_ms": 60_000}) as broker:
        async with (
            escapement.connect(broker.url, settings=PATIENT) as client,
            escapement.connect(broker.url, settings=PATIENT) as operator,
        ):
            producer = await client.producer("t")
            await producer.send(b"before")

            async def state() -> str:
                return str((await operator.admin("broker.stats"))["database"])

            async def reported(wanted: str) -> None:
                with trio.fail_after(TIMEOUT_S):
                    while True:
                        if await state() == wanted:
                            return
                        await trio.sleep(0.02)

            await reported("up")
            resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (1, unlimited))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(producer.send, b"during")
                await reported("down")
                for _ in range(50):
                    await trio.sleep(0.05)
                    assert await state() == "down"
                resource.prlimit(broker.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))
            await reported("up")
            async with client.consumer("t", "s", position="earliest") as inbox:
                received = [await anext(inbox), await anext(inbox)]
            # The second one may be in the timing wheel while the first is read from the index.
            assert {message.value for message in received} == {b"before", b"during"}
