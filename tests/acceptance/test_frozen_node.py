"""A node that hangs is a pause for applications, with the settings that everybody has (B8).

Its process is stopped, so its connections stay open and nothing answers, as if its machine were
lost.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import trio

import escapement
from escapement.broker.limits import BrokerLimits
from support.processes.broker import broker_process, until

LEASE_S: Final = BrokerLimits().lease_ms / 1000
FAILOVER_S: Final = 1.5 * LEASE_S + 2
LOOK_S: Final = 0.05


async def measure_lost_time(lost_s: list[float]) -> None:
    """Note the times for which this process did not run although it wanted to."""
    while True:
        began_s = time.monotonic()
        await trio.sleep(LOOK_S)
        lost_s.append(time.monotonic() - began_s - LOOK_S)


async def test_frozen_owner_is_a_pause_for_clients_with_default_settings(
    tmp_path: Path, mysql_url: str
) -> None:
    """The limit is that of a failover, and what other work took from this process."""
    lost_s: list[float] = []
    got: list[bytes] = []
    with (
        broker_process(tmp_path / "a", mysql_url) as first,
        broker_process(tmp_path / "b", mysql_url) as second,
    ):
        url = f"escapement://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        async with escapement.connect(url) as client, trio.open_nursery() as nursery:
            assert client.name == f"127.0.0.1:{first.port}"
            producer = await client.producer("t")

            async def consume() -> None:
                async with client.consumer("t", "s", position="earliest") as inbox:
                    async for message in inbox:
                        got.append(message.value)
                        await inbox.ack([message])

            nursery.start_soon(consume)
            await producer.send(b"before")
            await until(lambda: got == [b"before"])
            await producer.send(b"soon", delay=(2, "s"))
            nursery.start_soon(measure_lost_time, lost_s)
            first.pause()
            frozen_s = time.monotonic()
            await producer.send(b"during")
            received_s = time.monotonic() - frozen_s
            await until(lambda: len(got) == 3)
            delivered_s = time.monotonic() - frozen_s
            nursery.cancel_scope.cancel()
        assert second.lines("the broker owns the log")
    assert sorted(got[1:]) == [b"during", b"soon"]
    assert received_s > LEASE_S / 2, "the owner was not frozen"
    assert max(received_s, delivered_s) < FAILOVER_S + sum(lost_s)
