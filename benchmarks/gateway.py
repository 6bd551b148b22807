"""How fast messages are published over HTTP, with one gateway.

    python benchmarks/gateway.py [--connections 16] [--seconds 5] [--rounds 3] [--sqlite]
        [--against COMMIT]

Starts a broker, a gateway, and a bare server: the same libraries with an application that reads
the body of a request and answers at once. The load comes from another process, over connections
that stay open, with 100 bytes a message. Without --sqlite the log is in a private MariaDB or MySQL
server. In turn, for a few rounds, it measures requests with one message at both, and with 100
messages at the gateway. Prints the median of each, lowest and highest, and the median processor
time per message of the HTTP server's process and of the broker, which hardly depends on other load.
With --against, a gateway of another commit takes its turns, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from escapement.http.server import serve_http

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.commits import source_of
from support.database.servers import private_server
from support.processes.broker import broker_process
from support.processes.http_server import gateway_process

PATH: Final = "/v1/topics/bench/http/orders"
BATCH: Final = 100
PAYLOAD: Final = "x" * 100


def request_of(path: str, body: bytes, content_type: str) -> bytes:
    head = (
        f"POST {PATH}/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
        f"Escapement-Delay: 1h\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


SINGLE: Final = request_of("messages", PAYLOAD.encode(), "application/octet-stream")
SEVERAL: Final = request_of(
    "batches",
    json.dumps({"messages": [{"text": PAYLOAD, "delay": "1h"}] * BATCH}).encode(),
    "application/json",
)


def load(port: int, request: bytes, connections: int, seconds: float) -> float:
    """Send requests over several connections. Return the number of answers a second."""
    until = time.monotonic() + seconds
    counts: list[int] = []

    def send() -> None:
        count = 0
        with socket.create_connection(("127.0.0.1", port)) as connection:
            reader = connection.makefile("rb")
            while time.monotonic() < until:
                connection.sendall(request)
                status, length = reader.readline(), 0
                assert b" 201 " in status, status
                while (line := reader.readline()) != b"\r\n":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                reader.read(length)
                count += 1
        counts.append(count)

    threads = [threading.Thread(target=send) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == connections, "a connection failed"
    return sum(counts) / seconds


def run_bare(ports: multiprocessing.SimpleQueue[int]) -> None:
    """Serve an application that answers at once."""

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b'{"offset":0}', 201, media_type="application/json")

    app = Starlette(routes=[Route(f"{PATH}/messages", answer, methods=["POST"])])

    async def serve() -> None:
        await serve_http(app, "127.0.0.1", 0, trio.sleep_forever, ready=ports.put)

    trio.run(serve)


class Server(NamedTuple):
    """A server that takes the load."""

    port: int
    pid: int


class Round(NamedTuple):
    """What a round has measured: messages a second, and processor time per message."""

    per_s: float
    server_us: float
    broker_us: float


@contextlib.contextmanager
def bare_process() -> Iterator[Server]:
    ports: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=run_bare, args=(ports,), daemon=True)
    process.start()
    assert process.pid is not None
    yield Server(ports.get(), process.pid)
    process.kill()
    process.join()


@contextlib.contextmanager
def gateway(home: Path, brokers: str, **variables: str) -> Iterator[Server]:
    with gateway_process(home, brokers, **variables) as running:
        yield Server(int(running.url.rpartition(":")[2]), running.process.pid)


def used_s(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options: argparse.Namespace, servers: dict[str, Server], broker_pid: int) -> None:
    cases = {f"{name}, single": (server, SINGLE, 1) for name, server in servers.items()}
    for name, server in servers.items():
        if name != "bare server":
            cases[f"{name}, batches of {BATCH}"] = (server, SEVERAL, BATCH)
    found: dict[str, list[Round]] = {name: [] for name in cases}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for _ in range(options.rounds + 1):
            for name, (server, request, messages) in cases.items():
                before = used_s(server.pid), used_s(broker_pid)
                given = (server.port, request, options.connections, options.seconds)
                per_s = messages * pool.apply(load, given)
                after = used_s(server.pid), used_s(broker_pid)
                spent_s = (b - a for a, b in zip(before, after, strict=True))
                times = (1e6 * one_s / (per_s * options.seconds) for one_s in spent_s)
                found[name].append(Round(per_s, *times))
    for name, rounds in found.items():
        speeds, server_us, broker_us = zip(*rounds[1:], strict=True)  # the first round warms up
        print(
            f"{name:32} {statistics.median(speeds):8,.0f} messages/s "
            f"({min(speeds):,.0f} to {max(speeds):,.0f}), {statistics.median(server_us):,.0f} us "
            f"of the server, {statistics.median(broker_us):,.0f} us of the broker"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sqlite", action="store_true")
    parser.add_argument("--against", metavar="COMMIT")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if not options.sqlite:
            url = stack.enter_context(private_server()).url("escapement_bench")
        broker = stack.enter_context(broker_process(home / "data", url))
        address = broker.url.partition("://")[2]
        servers = {
            "bare server": stack.enter_context(bare_process()),
            "gateway": stack.enter_context(gateway(home / "gateway", address)),
        }
        if options.against:
            source = str(stack.enter_context(source_of(options.against)))
            before = gateway(home / "before", address, PYTHONPATH=source)
            servers["gateway before"] = stack.enter_context(before)
        measure(options, servers, broker.process.pid)


if __name__ == "__main__":
    main()
