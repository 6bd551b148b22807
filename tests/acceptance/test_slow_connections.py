"""Thousands of connections that send a byte a second cost the broker almost nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import trio

import escapement
from support import slow_peers
from support.processes.broker import PATIENT, BrokerProcess, broker_process

CONNECTIONS = 5_000
MIB = 1 << 20
SECONDS = 10


def processor_s(broker: BrokerProcess) -> float:
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE)


async def test_slow_connections_cost_little_memory_and_time(tmp_path: Path) -> None:
    """O3: they come from 50 addresses, and connect again when the broker closes them.

    The latency of a good client is measured by benchmarks/slow_connections.py. Here a client
    connects and sends meanwhile, and the broker's processor time is bounded: it hardly depends on
    other load of the machine.
    """
    with broker_process(tmp_path / "data") as broker:
        async with escapement.connect(broker.url, settings=PATIENT) as client:
            producer = await client.producer("t")
            before_bytes = broker.rss_bytes()
            command = [sys.executable, slow_peers.__file__, str(broker.port), str(CONNECTIONS)]
            with start(command) as slow:
                try:
                    assert slow.stdout is not None
                    await trio.to_thread.run_sync(slow.stdout.readline)  # all have connected
                    before_s = processor_s(broker)
                    for _ in range(SECONDS):
                        await producer.send(b"x")
                        async with escapement.connect(broker.url, settings=PATIENT) as other:
                            await (await other.producer("u")).send(b"x")
                        await trio.sleep(1)
                    busy_s = processor_s(broker) - before_s
                finally:
                    slow.kill()
            assert busy_s < 0.3 * SECONDS, f"{busy_s:.1f} processor seconds"
            grown_mib = (broker.rss_bytes() - before_bytes) / MIB
            assert grown_mib < 50, f"{grown_mib:.0f} MiB more"
        assert broker.stop() == 0
