"""Several processes of `escapement serve` on one database share its bundles (B8)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import escapement
from escapement.storage.bundles import bundle_of_name, set_bundle_count
from escapement.storage.engine.open import open_engine
from escapement.storage.schema import migrate
from support.processes.broker import PATIENT, BrokerProcess

BUNDLES: Final = 4
LEASE_MS: Final = 1_500
LIMITS: Final[dict[str, Any]] = {"lease_ms": LEASE_MS}


@pytest.fixture
def nodes(tmp_path: Path, mysql_url: str) -> Iterator[list[BrokerProcess]]:
    """Two processes on a database with several bundles, not started."""
    engine = open_engine(mysql_url, tmp_path)
    migrate(engine)
    set_bundle_count(engine, BUNDLES)
    engine.close()
    with ExitStack() as stack:
        found = [BrokerProcess(tmp_path / name, mysql_url, limits=LIMITS) for name in ("a", "b")]
        for one in found:
            stack.callback(one.remove)
        yield found


def topics() -> list[str]:
    """Return the name of a topic in each bundle."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < BUNDLES:
        name = f"t{number}"
        found.setdefault(bundle_of_name(f"public/default/{name}", BUNDLES), name)
        number += 1
    return [found[bundle_id] for bundle_id in range(BUNDLES)]


async def test_another_node_takes_the_bundles_of_a_killed_one(nodes: list[BrokerProcess]) -> None:
    """The application sees a pause, and no message is lost."""
    first, second = nodes
    first.start()
    second.start()
    url = f"escapement://127.0.0.1:{first.port},127.0.0.1:{second.port}"
    async with escapement.connect(url, settings=PATIENT) as client:
        producers = {name: await client.producer(name, send_timeout=(60, "s")) for name in topics()}
        for name in producers:
            await client.admin("subscriptions.create", topic=name, subscription="s")
        for name, producer in producers.items():
            await producer.send_many([f"{name} {n}".encode() for n in range(50)])
        first.kill()
        for name, producer in producers.items():
            await producer.send_many([f"{name} {n}".encode() for n in range(50, 100)])
        for name in producers:
            async with client.consumer(name, "s") as inbox:
                with trio.fail_after(60):
                    got = [await anext(inbox) for _ in range(100)]
                assert sorted(message.value for message in got) == sorted(
                    f"{name} {n}".encode() for n in range(100)
                )
                await inbox.ack(got, durable=True)
