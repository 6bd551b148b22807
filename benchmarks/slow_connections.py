"""Measure how much connections without a handshake slow a good client.

    python benchmarks/slow_connections.py [--connections 5000] [--rounds 5] [--tls]

Each round measures a good client twice for some seconds: alone, and while so many connections send
a byte a second each without ever finishing their handshake. They come from 50 addresses, and
connect again when the broker closes them. The client sends a message and waits for its receipt,
100 times a second. Prints the 99th percentile of each part in milliseconds, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import escapement
from support import slow_peers
from support.processes.broker import PATIENT, BrokerProcess

REST_S = 0.01  # between two sends
WARM_UP_S = 3.0  # until all slow connections are open


def main() -> None:
    """Measure, and print a row for each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part of a round")
    parser.add_argument("--tls", action="store_true", help="with TLS on the broker's port")
    trio.run(measure, parser.parse_args())


async def measure(options: argparse.Namespace) -> None:
    """Start a broker, and measure alternately without and with slow connections."""
    with tempfile.TemporaryDirectory(prefix="escapement-slow-") as home:
        words, ca = tls_options(Path(home)) if options.tls else ([], None)
        broker = BrokerProcess(Path(home) / "data", None, *words)
        broker.start()
        url = broker.url.replace("escapement:", "escapements:") if options.tls else broker.url
        try:
            async with escapement.connect(url, settings=PATIENT, ca_file=ca) as client:
                producer = await client.producer("t")
                await sends(producer, 2.0)
                alone, beside = [], []
                for number in range(1, options.rounds + 1):
                    before_s = processor_s(broker)
                    alone.append(p99(await sends(producer, options.seconds)))
                    idle_s = processor_s(broker) - before_s
                    with Slow(broker.port, options.connections, options.tls) as slow:
                        await trio.sleep(WARM_UP_S)
                        before_s = processor_s(broker)
                        beside.append(p99(await sends(producer, options.seconds)))
                        busy_s = processor_s(broker) - before_s
                    print(
                        f"round {number}: p99 alone {alone[-1]:.2f} ms, beside {beside[-1]:.2f} ms;"
                        f" ratio {beside[-1] / alone[-1]:.2f}; broker processor seconds "
                        f"{idle_s:.2f} and {busy_s:.2f}; {slow.opened} connections opened; "
                        f"{broker.rss_bytes() / 2**20:.0f} MiB",
                        flush=True,
                    )
                    await trio.sleep(WARM_UP_S)
            ratio = statistics.median(b / a for a, b in zip(alone, beside, strict=True))
            print(f"median ratio {ratio:.2f}")
        finally:
            broker.remove()


async def sends(producer: escapement.Producer, seconds: float) -> list[float]:
    """Send messages one after the other, and return the time of each in milliseconds."""
    found = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        began_s = time.perf_counter()
        await producer.send(b"x", delay="1d")
        found.append((time.perf_counter() - began_s) * 1000)
        await trio.sleep(REST_S)
    return found


def p99(times_ms: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(times_ms, n=100)[98]


def processor_s(broker: BrokerProcess) -> float:
    """Return the processor seconds of the broker's process."""
    fields = Path(f"/proc/{broker.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class Slow:
    """The process of the slow connections, as long as a ``with`` block runs."""

    def __init__(self, port: int, connections: int, tls: bool) -> None:
        command = [sys.executable, slow_peers.__file__, str(port), str(connections)]
        self._command = command + ["--tls"] * tls
        self.opened = 0

    def __enter__(self) -> Slow:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        said, _ = self._process.communicate()
        self.opened = int(said.split()[-1]) if said.split() else 0


def tls_options(home: Path) -> tuple[list[str], str]:
    """Make a certificate, and return the broker's options and the file of its authority."""
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = [home / name for name in ("ca.pem", "cert.pem", "key.pem")]
    authority.cert_pem.write_to_path(str(files[0]))
    certificate.cert_chain_pems[0].write_to_path(str(files[1]))
    certificate.private_key_pem.write_to_path(str(files[2]))
    return ["--tls-cert", str(files[1]), "--tls-key", str(files[2])], str(files[0])


if __name__ == "__main__":
    main()
