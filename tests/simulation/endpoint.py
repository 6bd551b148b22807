"""An HTTP server in memory to which messages are posted, and which answers as the seed decides.

A ``Path`` takes the place of TCP below the HTTP client of a process that pushes. The connections
are those of ``network.py``, so they stall and break, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, Final

import h11
import httpcore
import trio

from histories.history import History
from simulation.checks.push_tries import Post
from simulation.network import Cable, Network

# Connections that the server has not accepted yet.
_BACKLOG: Final = 100
_ACCEPTED: Final = (200, 201, 202, 204)
_REJECTED: Final = (400, 404, 410, 422)
_FAILED: Final = (301, 429, 500, 502, 503)
_ASKS_TO_WAIT: Final = (429, 503)
# The longest wait that it asks for. The process that pushes waits for an hour at most.
_LONGEST_WAIT_S: Final = 5400
_NO_TIMES: Final = ("soon", "-5", "Thu, 31 Feb 2026 25:00:00 GMT")
# How long a slow answer takes. The longest timeout is a minute.
_SLOW_S: Final = 90.0
# The weights of what happens to a post, if the endpoint is well, troubled or failing.
_MOODS: Final = (
    {"accept": 80, "reject": 5, "slow": 5, "wait": 2, "fail": 2, "silence": 1, "lose": 3},
    {"accept": 25, "reject": 10, "slow": 15, "wait": 15, "fail": 15, "silence": 10, "lose": 10},
    {"accept": 1, "fail": 40, "wait": 5, "silence": 20, "lose": 10, "garbage": 10},
)
_MOOD_SHARES: Final = (5, 3, 1)
_HEALTHY: Final = {"accept": 1}


class Line:
    """One connection to the endpoint, and the post that is in progress on it."""

    def __init__(self, cable: Cable, note: Callable[[Post], None]) -> None:
        self.cable = cable
        self.note = note
        self.post: Post | None = None
        self.unheard = 0  # bytes of the answer that the client has not read


class Endpoint:
    """The server, and how it feels."""

    def __init__(self, history: History, network: Network, rng: random.Random) -> None:
        self._history = history
        self._network = network
        self._rng = rng
        self._arrivals, self._arriving = trio.open_memory_channel[Line](_BACKLOG)
        self._weights = dict(_HEALTHY)
        self.is_healed = False

    def change(self) -> None:
        """Become well, troubled or failing."""
        (mood,) = self._rng.choices(_MOODS, _MOOD_SHARES)
        self._weights = _HEALTHY if self.is_healed else mood

    def heal(self) -> None:
        """Accept all posts from now on."""
        self.is_healed = True
        self.change()

    def dial(self, note: Callable[[Post], None]) -> Line:
        """Open a connection. ``note`` is called with each post that arrives on it."""
        if not self.is_healed and self._rng.random() < 0.02:
            raise httpcore.ConnectError("refused, says the simulation")
        line = Line(Cable(self._network, self._history.now_ms), note)
        self._arrivals.send_nowait(line)
        return line

    async def serve(self) -> None:
        """Serve connections until cancelled."""
        async with trio.open_nursery() as nursery:
            async for line in self._arriving:
                nursery.start_soon(self._serve, line)

    async def _serve(self, line: Line) -> None:
        stream, connection = line.cable.server, h11.Connection(h11.SERVER)
        try:
            while (post := await self._receive(stream, connection)) is not None:
                line.post = post
                line.note(post)
                if not await self._answer(line, post):
                    break
                connection = h11.Connection(h11.SERVER)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has closed it, or it was cut
        finally:
            await stream.aclose()

    async def _receive(self, stream: trio.abc.Stream, connection: h11.Connection) -> Post | None:
        """Return the next post; None if the client has closed the connection."""
        headers: dict[str, str] = {}
        body = b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if not (data := await stream.receive_some()):
                    return None
                connection.receive_data(data)
            elif isinstance(event, h11.Request):
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                assert isinstance(event, h11.EndOfMessage), event
                return Post(headers, body, self._history.now_s())

    async def _answer(self, line: Line, post: Post) -> bool:
        """Answer a post, or not. Return whether the connection may be used again."""
        self._history.counts["posts"] += 1
        (act,) = self._rng.choices(list(self._weights), list(self._weights.values()))
        self._history.counts[f"posts: {act}"] += 1
        if act == "silence":
            await line.cable.server.receive_some()  # until the client closes its end
            return False
        if act == "garbage":
            await line.cable.server.send_all(b"\x00 this is not HTTP \r\n\r\n")
            return False
        if act == "lose":  # it has handled the request
            line.cable.cut(noticed=self._rng.random() < 0.5)
            return False
        await trio.sleep(self._rng.uniform(0, _SLOW_S if act == "slow" else 0.2))
        headers = {"content-length": "0"}
        statuses = {"reject": _REJECTED, "fail": _FAILED, "wait": _ASKS_TO_WAIT}
        post.status = self._rng.choice(statuses.get(act, _ACCEPTED))
        if act == "wait":
            headers["retry-after"] = self._wait(post)
        is_last = self._rng.random() < 0.2
        if is_last:
            headers["connection"] = "close"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        answer = f"HTTP/1.1 {post.status} Some\r\n{lines}\r\n".encode()
        line.unheard = len(answer)
        await line.cable.server.send_all(answer)
        return not is_last

    def _wait(self, post: Post) -> str:
        """Return a Retry-After, which may not be valid."""
        wait_s = int(self._rng.choice([5, 60, _LONGEST_WAIT_S]) * self._rng.random())
        form = self._rng.choice(["seconds", "seconds", "date", "none"])
        if form == "seconds":
            post.wait_ms = wait_s * 1000
            return str(wait_s)
        if form == "date":
            at_s = self._history.now_ms() // 1000 + wait_s
            post.wait_until_ms = at_s * 1000
            return format_datetime(datetime.fromtimestamp(at_s, UTC), usegmt=True)
        return self._rng.choice(_NO_TIMES)


class Path(httpcore.AsyncNetworkBackend):
    """Opens the connections of one process to the endpoint.

    Args:
      note: called with each post that arrives on them.
    """

    def __init__(self, endpoint: Endpoint, note: Callable[[Post], None]) -> None:
        self._endpoint = endpoint
        self._note = note
        self.cables: list[Cable] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        await trio.lowlevel.checkpoint()
        line = self._endpoint.dial(self._note)
        self.cables.append(line.cable)
        return _Stream(line, self._endpoint._history)

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise AssertionError("a target is no Unix socket")

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    """The client's end of a connection, which notes when an answer has come."""

    def __init__(self, line: Line, history: History) -> None:
        self._line = line
        self._history = history

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            data = await self._line.cable.client.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.ReadError(str(error)) from error
        line = self._line
        if line.unheard and line.post is not None:
            line.unheard -= len(data)
            if not line.unheard:
                line.post.heard_s = self._history.now_s()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            await self._line.cable.client.send_all(buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise httpcore.WriteError(str(error)) from error

    async def aclose(self) -> None:
        await self._line.cable.client.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._line.cable.client.is_readable if info == "is_readable" else None
