"""Kills of a broker while messages are cancelled and rescheduled."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import trio

import escapement
from escapement.storage.engine.open import open_engine
from escapement.storage.journal import journal
from support.processes.broker import PATIENT, BrokerProcess, broker_process, until

COUNT = 20_000
HELD = 300
KILLS = 3
HOUR = timedelta(hours=1)


async def change(
    process: BrokerProcess,
    cancelled: np.ndarray,
    rng: random.Random,
    task_status: trio.TaskStatus[None],
) -> None:
    """Cancel and reschedule some messages at a time until cancelled. Record answered cancels."""
    async with escapement.connect(process.url, settings=PATIENT) as client:
        task_status.started()
        while True:
            low = rng.randrange(COUNT)
            some = np.arange(low, min(low + 50, COUNT))
            if rng.random() < 0.4:
                outcomes = await client.cancel(some, topic="t")
                cancelled[outcomes.offsets[outcomes.done]] = True
            else:
                delay = timedelta(minutes=rng.randrange(30, 90))
                outcomes = await client.reschedule(some, delay=delay, topic="t")
            statuses = {outcome.status for outcome in outcomes}
            assert statuses <= {escapement.AmendStatus.DONE, escapement.AmendStatus.CANCELLED}


async def kill_again_and_again(process: BrokerProcess, rng: random.Random) -> None:
    for _ in range(KILLS):
        await trio.sleep(rng.uniform(0.3, 1.2))
        process.kill()
        await trio.to_thread.run_sync(process.start)


@pytest.mark.parametrize("database", ["sqlite", "mysql"])
async def test_answered_cancels_and_reschedules_survive_kills(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """B1: no cancelled message is delivered and no other is lost, also after an index rebuild."""
    url = request.getfixturevalue("mysql_url") if database == "mysql" else None
    cancelled = np.zeros(COUNT, bool)
    with broker_process(tmp_path / "data", url) as process:
        async with escapement.connect(process.url, settings=PATIENT) as client:
            await client.admin("subscriptions.create", topic="t", subscription="s")
            producer = await client.producer("t")
            await producer.send_many([b"%d" % n for n in range(COUNT)], delay=HOUR)
        async with trio.open_nursery() as nursery:
            for seed in range(3):
                await nursery.start(change, process, cancelled, random.Random(seed))
            await kill_again_and_again(process, random.Random(7))
            # Requests in progress have no answer. The broker may have carried them out.
            nursery.cancel_scope.cancel()
        process.kill()
        shutil.rmtree(process.index)
        process.start()
        async with escapement.connect(process.url, settings=PATIENT) as client:
            selection = await client.select("t")
            left = np.zeros(COUNT, bool)
            left[selection.offsets] = True
            assert len(selection) == left.sum()
            assert cancelled.any()
            assert not (left & cancelled).any(), "an answered cancellation was forgotten"
            # Each of the three tasks may have had one unanswered request at each kill.
            assert (~left & ~cancelled).sum() <= 3 * 50 * (KILLS + 1)
            assert (await client.run_now(selection)).done.all()
            delivered = np.zeros(COUNT, np.int64)
            with trio.fail_after(60):
                async with client.consumer("t", "s") as inbox:
                    async for batch in inbox.batches():
                        delivered[batch.offsets] += 1
                        await inbox.ack(batch.offsets)
                        if delivered.sum() >= left.sum():
                            break
            assert (delivered == left).all(), "lost, delivered twice, or at another time"


def recorded(url: str | None, data: Path) -> set[int]:
    """Return the offsets whose delivery is in the journal."""
    with closing(open_engine(url, data)) as engine, closing(engine.connect()) as connection:
        attempts = [row.entry.attempts for row in journal.read(connection, 0)]
    return {offset for one in attempts if one is not None for offset in one.offset.tolist()}


@pytest.mark.parametrize("database", ["sqlite", "mysql"])
async def test_message_in_flight_at_a_kill_is_fired(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Q2, V4, B1: the broker has recorded the delivery and its attempt."""
    url = request.getfixturevalue("mysql_url") if database == "mysql" else None
    held, all_of_them = np.arange(HELD), np.arange(2 * HELD)
    limits = {"checkpoint_interval_s": 3_600}  # a checkpoint would trim the journal
    with broker_process(tmp_path / "data", url, limits=limits) as process:
        async with escapement.connect(process.url, settings=PATIENT) as client:
            names = {"topic": "t", "subscription": "s"}
            await client.admin("subscriptions.create", **names)
            bound = {"max_in_flight": HELD}
            await client.admin("subscriptions.update", **names, policy=bound)
            await (await client.producer("t")).send_many([b"%d" % n for n in all_of_them])
            async with client.consumer("t", "s", ack_wait=HOUR) as inbox:
                for _ in range(HELD):
                    assert (await anext(inbox)).attempt == 1
                await until(lambda: recorded(url, process.data) == {*range(HELD)})
                process.kill()
            await trio.to_thread.run_sync(process.start)
        async with escapement.connect(process.url, settings=PATIENT) as client:
            history = await client.show(HELD - 1, "t")
            assert (history.state, history.subscriptions[0].attempts) == ("fired", 1)
            # After a crash, all due messages may have been delivered, so none is cancelled.
            outcomes = await client.cancel(all_of_them, topic="t")
            assert (outcomes.statuses == escapement.AmendStatus.DELIVERED).all()
            assert outcomes.handed_to("s").all()
            async with client.consumer("t", "s", ack_wait=HOUR) as inbox:
                with trio.fail_after(60):
                    again = [await anext(inbox) for _ in range(HELD)]
                assert {(message.offset, message.attempt) for message in again} == {
                    (offset, 2) for offset in held.tolist()
                }
