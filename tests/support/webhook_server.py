"""A real HTTPS server on loopback that answers posts as a test wants, also badly."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import h11
import trio

from support.certificates import Files

# Writes the answer to a post to the stream. Returns whether the connection may be used again.
Answer = Callable[[trio.abc.Stream], Awaitable[bool]]


@dataclass(frozen=True)
class Post:
    """A post as the server has received it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
    """Answer with a status, and go on."""

    async def answer(stream: trio.abc.Stream) -> bool:
        lines = {"content-length": str(len(body)), **(headers or {})}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        await stream.send_all(f"HTTP/1.1 {code} Some\r\n{head}\r\n".encode() + body)
        return True

    return answer


def raw(data: bytes) -> Answer:
    """Answer with these bytes, and close the connection."""

    async def answer(stream: trio.abc.Stream) -> bool:
        await stream.send_all(data)
        return False

    return answer


def held(gate: trio.Event, answer: Answer) -> Answer:
    """Answer when the gate opens."""

    async def answer_later(stream: trio.abc.Stream) -> bool:
        await gate.wait()
        return await answer(stream)

    return answer_later


async def silence(stream: trio.abc.Stream) -> bool:
    """Never answer."""
    await trio.sleep_forever()
    raise AssertionError


async def endless(stream: trio.abc.Stream) -> bool:
    """Answer with a body that never ends, until the client closes the connection."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        await stream.send_all(b"1000\r\n" + b"x" * 4096 + b"\r\n")


@dataclass
class WebhookServer:
    """The server. It gives the next of ``answers``, and otherwise ``usual``.

    Attributes:
      posts: all that it has received, in the order of their ends.
      most_at_once: the most posts that were being answered at a time.
    """

    usual: Answer = field(default_factory=lambda: status(204))
    answers: deque[Answer] = field(default_factory=deque)
    posts: list[Post] = field(default_factory=list)
    connections: int = 0
    most_at_once: int = 0
    port: int = 0
    _now: int = 0
    _received: trio.Event = field(default_factory=trio.Event)

    async def until(self, count: int) -> list[Post]:
        """Wait until the server has received ``count`` posts, and return all."""
        while len(self.posts) < count:
            await self._received.wait()
        return self.posts

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection."""
        self.connections += 1
        try:
            connection = h11.Connection(h11.SERVER)
            while await self._serve_one(stream, connection):
                connection = h11.Connection(h11.SERVER)
        except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError):
            pass  # the client has closed it
        finally:
            await trio.aclose_forcefully(stream)

    async def _serve_one(self, stream: trio.abc.Stream, connection: h11.Connection) -> bool:
        request, body = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                data = await stream.receive_some()
                if not data and request is None:
                    return False
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                assert isinstance(event, h11.EndOfMessage), event
                break
        assert request is not None
        headers = {name.decode(): value.decode() for name, value in request.headers}
        self.posts.append(Post(request.method.decode(), request.target.decode(), headers, body))
        received, self._received = self._received, trio.Event()
        received.set()
        answer = self.answers.popleft() if self.answers else self.usual
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return await answer(stream)
        finally:
            self._now -= 1


@asynccontextmanager
async def webhook_server(files: Files | None) -> AsyncIterator[WebhookServer]:
    """Run a server on 127.0.0.1 with a certificate, or without TLS."""
    server = WebhookServer()
    async with trio.open_nursery() as nursery:
        handler = server.serve
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.cert, files.key)

            async def handler(stream: trio.abc.Stream) -> None:
                await server.serve(trio.SSLStream(stream, context, server_side=True))

        serve = partial(trio.serve_tcp, handler, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        server.port = listener.socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()
