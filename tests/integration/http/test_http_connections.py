"""A connection that fails, or whose client does not read, concerns no other and delays no stop."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
import pytest
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from escapement.http import server
from escapement.http.server import serve_http

HOST: Final = "127.0.0.1"
# More than the buffers of a connection hold.
LARGE_BYTES: Final = 64 << 20
PATIENCE_S: Final = 60.0

HEAD: Final = [(":method", "POST"), (":scheme", "http"), (":authority", HOST)]


class Large:
    """An application with a small page, and a large one.

    Attributes:
      answered: set when an answer with the large page has ended.
    """

    def __init__(self) -> None:
        self.answered: Final = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        if request.url.path != "/large":
            await PlainTextResponse("small")(scope, receive, send)
            return
        try:
            await PlainTextResponse(b"x" * LARGE_BYTES)(scope, receive, send)
        finally:
            self.answered.set()


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[int, trio.Event, trio.Nursery]]:
    """Serve an application; return its port, the event that stops it, and the nursery it is in."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        ports: list[int] = []
        bound = trio.Event()

        def ready(port: int) -> None:
            ports.append(port)
            bound.set()

        async def serve() -> None:
            await serve_http(app, HOST, 0, stop.wait, ready=ready)

        nursery.start_soon(serve)
        await bound.wait()
        yield ports[0], stop, nursery
        stop.set()


async def stalled(port: int) -> trio.SocketStream:
    """Ask for the large page, and read only the beginning of the answer."""
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect((HOST, port))
    stream = trio.SocketStream(sock)
    await stream.send_all(f"GET /large HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\nx" not in got:
        got += await stream.receive_some(16)
    return stream


def not_ascii() -> bytes:
    return (
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade, \xff\r\n"
        b"Sec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )


def http_2(*requests: Callable[[H2Connection], None]) -> bytes:
    config = H2Configuration(validate_outbound_headers=False, header_encoding=None)
    connection = H2Connection(config)
    connection.initiate_connection()
    for request in requests:
        request(connection)
    return bytes(connection.data_to_send())


def path_that_is_not_ascii(connection: H2Connection) -> None:
    connection.send_headers(1, [*HEAD, (b":path", b"/\xff")])


def connect_without_a_path(connection: H2Connection) -> None:
    connection.send_headers(1, [(":method", "CONNECT"), (":authority", HOST)])


def too_many_priorities(connection: H2Connection) -> None:
    for stream in range(1, 2201, 2):
        connection.prioritize(stream, weight=16)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(not_ascii(), id="websocket"),
        pytest.param(http_2(path_that_is_not_ascii), id="path"),
        pytest.param(http_2(connect_without_a_path), id="connect"),
        pytest.param(http_2(too_many_priorities), id="priorities"),
    ],
)
async def test_invalid_request_ends_no_other_connection(sent: bytes) -> None:
    """B15: a request that the server cannot read ends its own connection, and nothing else."""
    with trio.fail_after(PATIENCE_S):
        async with serving(Large()) as (port, _, _):
            async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}") as http:
                assert (await http.get("/")).text == "small"
                async with await trio.open_tcp_stream(HOST, port) as stream:
                    await stream.send_all(sent)
                    while await stream.receive_some():
                        pass
                (kept,) = http._transport._pool.connections  # type: ignore[attr-defined]
                assert (await http.get("/")).text == "small"
                assert http._transport._pool.connections == [kept]  # type: ignore[attr-defined]


async def test_answer_before_the_end_of_a_request_announces_that_the_connection_closes() -> None:
    """B15: a client that does not know it would lose its next request."""
    whole = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    half = f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\n\r\nbo".encode()
    with trio.fail_after(PATIENCE_S):
        async with serving(Large()) as (port, _, _):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.send_all(whole)
                assert b"connection: close" not in await answer_on(stream)
                await stream.send_all(half)
                assert b"connection: close" in await answer_on(stream)
                assert await stream.receive_some() == b""


async def test_connection_stays_open_after_a_whole_request_whose_body_is_not_read() -> None:
    """B15: a refused request costs its client no new connection, whichever task runs first."""
    head = f"POST / HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 4\r\n\r\n".encode()
    with trio.fail_after(PATIENCE_S):
        async with serving(Large()) as (port, _, _):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                for _ in range(20):
                    await stream.send_all(head + b"body")
                    assert b"connection: close" not in await answer_on(stream)


async def answer_on(stream: trio.SocketStream) -> bytes:
    """Return the head and the body of an answer with the small page."""
    got = b""
    while not got.endswith(b"small"):
        part = await stream.receive_some()
        assert part, got
        got += part
    return got


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"CONNECT / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n", id="upgrade"),
        pytest.param(http_2(), id="http 2"),
    ],
)
async def test_connection_ends_when_its_client_has_closed_it(sent: bytes) -> None:
    """B15: sockets of clients that have gone do not collect until their time to be idle is over."""
    with trio.fail_after(server.IDLE_S / 2):
        async with serving(Large()) as (port, _, _):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.send_all(sent)
                await stream.send_eof()
                while await stream.receive_some():
                    pass


async def test_answer_ends_when_a_client_of_http_2_has_gone_in_its_middle() -> None:
    """B15: the client has not allowed the server to send the whole of it, and never will."""
    app = Large()

    def large(connection: H2Connection) -> None:
        head = [(":method", "GET"), *HEAD[1:], (":path", "/large")]
        connection.send_headers(1, head, end_stream=True)

    with trio.fail_after(PATIENCE_S):
        async with serving(app) as (port, _, _):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.send_all(http_2(large))
                got = 0
                while got < (1 << 16) - 1:  # as much as a client allows at first
                    got += len(await stream.receive_some())
            await app.answered.wait()


async def test_answer_that_a_client_does_not_read_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B15: unread answers do not collect in memory."""
    monkeypatch.setattr(server, "UNREAD_S", 0.5)
    app = Large()
    with trio.fail_after(PATIENCE_S):
        async with serving(app) as (port, _, _):
            client = await stalled(port)
            await app.answered.wait()
            await trio.aclose_forcefully(client)


async def test_server_stops_although_a_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B15: a client that never reads its answer does not delay the stop beyond its limit."""
    monkeypatch.setattr(server, "STOP_S", 0.0)
    with trio.fail_after(PATIENCE_S):
        async with serving(Large()) as (port, _, _):
            client = await stalled(port)
        await trio.aclose_forcefully(client)


async def test_server_can_be_cancelled_although_a_client_does_not_read() -> None:
    """O4: the side port ends with its broker, also with a client that never reads its answer."""
    with trio.fail_after(PATIENCE_S):
        async with serving(Large()) as (port, _, nursery):
            client = await stalled(port)
            nursery.cancel_scope.cancel()
        await trio.aclose_forcefully(client)
