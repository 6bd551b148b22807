"""How long applications wait for the next owner of their topics, with default settings (B8).

The limit is one and a half leases and two seconds, and what other work took from this process.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import trio

import escapement
from escapement.broker.limits import BrokerLimits
from support.processes.broker import BrokerProcess, broker_process, until

LOOK_S: Final = 0.05
# Shorter than the default, and long enough for a busy machine.
SHORT_LEASE_MS: Final = 5_000


def limit_s(lease_ms: int) -> float:
    return 1.5 * lease_ms / 1000 + 2


async def measure_lost_time(lost_s: list[float]) -> None:
    """Note the times for which this process did not run although it wanted to."""
    while True:
        began_s = time.monotonic()
        await trio.sleep(LOOK_S)
        lost_s.append(time.monotonic() - began_s - LOOK_S)


class Application:
    """A producer and a consumer of one topic."""

    def __init__(self, first: BrokerProcess, second: BrokerProcess) -> None:
        self._url = f"escapement://127.0.0.1:{first.port},127.0.0.1:{second.port}"
        self._owner = first
        self.lost_s: list[float] = []

    async def pause_s(self, *, killed: bool) -> float:
        """End or freeze the owner. Return how long a send and a due message take afterwards."""
        got: list[bytes] = []
        async with escapement.connect(self._url) as client, trio.open_nursery() as nursery:
            assert client.name == f"127.0.0.1:{self._owner.port}"
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
            nursery.start_soon(measure_lost_time, self.lost_s)
            began_s = time.monotonic()
            if killed:
                self._owner.kill()
            else:
                self._owner.pause()
            await producer.send(b"during")
            await until(lambda: len(got) == 3)
            assert sorted(got[1:]) == [b"during", b"soon"]
            nursery.cancel_scope.cancel()
            return time.monotonic() - began_s


async def test_owner_that_hangs_is_a_pause_for_clients_with_default_settings(
    tmp_path: Path, mysql_url: str
) -> None:
    """B8: its process is stopped. So its connections stay open, as if its machine were lost."""
    lease_ms = BrokerLimits().lease_ms
    with (
        broker_process(tmp_path / "a", mysql_url) as first,
        broker_process(tmp_path / "b", mysql_url) as second,
    ):
        application = Application(first, second)
        paused_s = await application.pause_s(killed=False)
        assert second.lines("the broker owns the log")
    assert lease_ms / 2000 < paused_s < limit_s(lease_ms) + sum(application.lost_s)


async def test_killed_owner_is_replaced_within_one_and_a_half_leases_and_two_seconds(
    tmp_path: Path, mysql_url: str
) -> None:
    """B8: no message is lost, and the next one that is due arrives in time."""
    limits = {"lease_ms": SHORT_LEASE_MS}
    with (
        broker_process(tmp_path / "a", mysql_url, limits=limits) as first,
        broker_process(tmp_path / "b", mysql_url, limits=limits) as second,
    ):
        application = Application(first, second)
        paused_s = await application.pause_s(killed=True)
        assert second.lines("the broker owns the log")
    assert paused_s < limit_s(SHORT_LEASE_MS) + sum(application.lost_s)
