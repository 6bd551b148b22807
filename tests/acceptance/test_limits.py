"""Kills of a broker while messages expire and are dropped to the dead-letter topic."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import trio

import escapement
from support.processes.broker import PATIENT, BrokerProcess, broker_process

BATCHES: Final = 60
BATCH: Final = 50
KEPT: Final = 100
KILLS: Final = 3
TIMEOUT_S: Final = 60
LIMITED: Final = {"expired_to_dead_letter": "yes", "dropped_to_dead_letter": "yes"}
# Limits on the time and the number of pending messages of a topic.
POLICIES: Final[dict[str, dict[str, Any]]] = {
    "short": {"ttl_ms": "300ms"},
    "few": {"quota_messages": KEPT, "quota_action": "drop_oldest"},
}
WHERE: Final = [(topic, kind) for topic in POLICIES for kind in ("shared", "exclusive")]


async def prepare(url: str) -> None:
    """Create the topics, each with a subscription without consumers."""
    async with escapement.connect(url, settings=PATIENT) as broker:
        for name, kind in WHERE:
            topic = f"t/n/{name}-{kind}"
            await broker.admin(
                "subscriptions.create", topic=topic, subscription="s", kind=kind, policy=LIMITED
            )
            await broker.admin("topics.update", topic=topic, policy=POLICIES[name])


async def publish(url: str, topic: str, task_status: trio.TaskStatus[None]) -> None:
    """Publish all messages, across all kills of the broker."""
    async with escapement.connect(url, settings=PATIENT) as broker:
        task_status.started()
        producer = await broker.producer(topic, name="p", send_timeout="60s")
        for batch in range(BATCHES):
            values = range(batch * BATCH, (batch + 1) * BATCH)
            await producer.send_many([b"%d" % value for value in values])
            await trio.sleep(0.05)


async def kill_again_and_again(broker: BrokerProcess, rng: random.Random) -> None:
    for _ in range(KILLS):
        await trio.sleep(rng.uniform(0.3, 1.0))
        broker.kill()
        await trio.to_thread.run_sync(broker.start)


async def waiting(broker: escapement.Broker, topic: str) -> int:
    """Return the number of unacknowledged messages of the subscription."""
    (row,) = await broker.admin("subscriptions.list", topic=topic)
    count: int = row["unacknowledged"]
    return count


async def values(broker: escapement.Broker, topic: str, count: int) -> list[int]:
    """Return the first ``count`` messages in the log of a topic."""
    found: list[int] = []
    async with broker.consumer(topic, "look", kind="exclusive", position="earliest") as inbox:
        while len(found) < count:
            found.append(int((await inbox.receive()).value))
    return found


async def left(broker: escapement.Broker, topic: str, kind: str) -> list[int]:
    """Consume the pending messages of the subscription, and return their values."""
    count = await waiting(broker, topic)
    async with broker.consumer(topic, "s", kind=kind) as inbox:
        return [int((await inbox.receive()).value) for _ in range(count)]


async def test_expired_and_dropped_messages_have_one_dead_letter_each_across_kills(
    mysql_url: str, tmp_path: Path
) -> None:
    """P6, P10: the newest messages within the quota stay pending."""
    with broker_process(tmp_path / "data", mysql_url) as process:
        await prepare(process.url)
        async with trio.open_nursery() as nursery:
            for name, kind in WHERE:
                await nursery.start(publish, process.url, f"t/n/{name}-{kind}")
            await kill_again_and_again(process, random.Random(3))
        async with escapement.connect(process.url, settings=PATIENT) as broker:
            with trio.fail_after(TIMEOUT_S):
                for name, kind in WHERE:
                    kept, topic = (KEPT if name == "few" else 0), f"t/n/{name}-{kind}"
                    dead = f"{topic}-s-DLQ"
                    while await waiting(broker, topic) > kept:  # noqa: ASYNC110 (another process changes it)
                        await trio.sleep(0.1)
                    gone = await values(broker, dead, BATCHES * BATCH - kept)
                    ends = (await broker.admin("topics.stats", topic=dead))["next_offset"]
                    assert ends == len(gone), "a message has two dead letters"
                    assert sorted(gone) == list(range(BATCHES * BATCH - kept))
                    if kept:
                        rest = await left(broker, topic, kind)
                        assert rest == list(range(BATCHES * BATCH - kept, BATCHES * BATCH))
