"""How fast messages are published over HTTP, with one gateway.

    python benchmarks/gateway.py [--connections 16] [--seconds 5] [--rounds 3] [--sqlite]

Starts a broker, a gateway, and a bare server: the same libraries with an application that reads
the body of a request and answers at once. The load comes from another process, over connections
that stay open, with 100 bytes a message. Without --sqlite the log is in a private MariaDB or MySQL
server. In turn, for a few rounds, it measures requests with one message at both, and with 100
messages at the gateway. Prints the median of each, lowest and highest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from escapement.http.server import serve_http

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
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


@contextlib.contextmanager
def bare_process() -> Iterator[int]:
    ports: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=run_bare, args=(ports,), daemon=True)
    process.start()
    yield ports.get()
    process.kill()
    process.join()


def measure(options: argparse.Namespace, port: int, bare: int) -> None:
    cases = {
        "bare server, single": (bare, SINGLE, 1),
        "gateway, single": (port, SINGLE, 1),
        f"gateway, batches of {BATCH}": (port, SEVERAL, BATCH),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for _ in range(options.rounds + 1):
            for name, (at, request, messages) in cases.items():
                given = (at, request, options.connections, options.seconds)
                found[name].append(messages * pool.apply(load, given))
    for name, speeds in found.items():
        speeds = speeds[1:]  # the first round warms up
        middle = statistics.median(speeds)
        print(f"{name:24} {middle:8,.0f} messages/s ({min(speeds):,.0f} to {max(speeds):,.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sqlite", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = None
        if not options.sqlite:
            url = stack.enter_context(private_server()).url("escapement_bench")
        broker = stack.enter_context(broker_process(home / "data", url))
        address = broker.url.partition("://")[2]
        gateway = stack.enter_context(gateway_process(home / "gateway", address))
        bare = stack.enter_context(bare_process())
        measure(options, int(gateway.url.rpartition(":")[2]), bare)


if __name__ == "__main__":
    main()
