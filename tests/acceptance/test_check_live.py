"""`escapement check` beside a broker that publishes, acknowledges, deletes and compacts."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import trio

import escapement
from escapement.check.check import Check
from escapement.cli.main import run as command
from escapement.doctor.finding import Finding
from escapement.storage.engine.open import open_engine
from escapement.storage.index.segments.manifest import ManifestFile
from support.processes.broker import PATIENT, BrokerProcess, broker_process

BATCH: Final = 200
CHECKPOINT_S: Final = 0.3
LIMIT_S: Final = 90
# Some messages fall due during the test, most after it.
DELAYS: Final = [None if n % 3 == 0 else timedelta(seconds=n / 20) for n in range(BATCH)]


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
async def test_check_of_a_busy_broker_finds_nothing(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    """O7: during checkpoints, compactions, deletions and seeks, and after a kill."""
    url = request.getfixturevalue("mysql_url") if kind == "mysql" else None
    limits = {"checkpoint_interval_s": CHECKPOINT_S}
    with broker_process(tmp_path / "data", url, limits=limits) as process:
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            await broker.admin("subscriptions.create", topic="busy", subscription="s")
            async with trio.open_nursery() as nursery:
                for work in (publish, consume, delete, seek):
                    nursery.start_soon(work, broker)
                with trio.fail_after(LIMIT_S):
                    await check_until_merged(process, url)
                nursery.cancel_scope.cancel()
        where = ["--data", str(process.data), *(["--log", url] if url else [])]
        assert command(["check", *where, "--repair"]) == 1
        assert "is in use by process" in capsys.readouterr().err
        process.kill()
        assert not bad(check(process.data, url))


async def check_until_merged(process: BrokerProcess, url: str | None) -> None:
    """Check again and again until the broker has merged segments, five times at least."""
    merged, checks, compared = False, 0, 0
    before: set[str] = set()
    while not merged or checks < 5 or not compared:
        found = await trio.to_thread.run_sync(partial(check, process.data, url))
        assert not bad(found)
        checks += 1
        compared += all("not compared with the index" not in one.text for one in found)
        manifest = ManifestFile(process.index).current
        now = set() if manifest is None else set(manifest.segments)
        merged = merged or not before <= now
        before = now


def check(data: Path, url: str | None) -> list[Finding]:
    with closing(open_engine(url, data)) as engine:
        return Check(engine, data).run()


def bad(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.is_bad]


async def publish(broker: escapement.Broker) -> None:
    async with await broker.producer("busy") as producer:
        for batch in count():
            await producer.send_many([b"x"] * BATCH, delay=DELAYS)
            first = BATCH * batch + 50
            await broker.cancel(list(range(first, first + 10)), topic="busy")
            moved = list(range(first + 5, first + 20))
            await broker.reschedule(moved, topic="busy", delay=timedelta(seconds=3))
            await trio.sleep(0.05)  # leave time for other work


async def consume(broker: escapement.Broker) -> None:
    async with broker.consumer("busy", "s") as inbox:
        async for message in inbox:
            if message.offset % 7:
                await inbox.ack(message)
            else:
                await inbox.nack(message)


async def delete(broker: escapement.Broker) -> None:
    """Create topics with messages and delete them."""
    for number in count():
        topic = f"brief-{number}"
        await broker.admin("subscriptions.create", topic=topic, subscription="s")
        async with await broker.producer(topic) as producer:
            await producer.send_many([b"x"] * BATCH, delay=DELAYS)
        await broker.admin("topics.delete", topic=topic, force=True)


async def seek(broker: escapement.Broker) -> None:
    """Create subscriptions that get all earlier messages, seek and delete them."""
    for number in count():
        where = {"topic": "busy", "subscription": f"brief-{number}"}
        await broker.admin("subscriptions.create", position="earliest", **where)
        await broker.admin("subscriptions.seek", position="latest", **where)
        await broker.admin("subscriptions.delete", **where)
        await trio.sleep(CHECKPOINT_S)
