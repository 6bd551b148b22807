"""Posts messages to endpoints over HTTP. It does the I/O and decides nothing.

A host is resolved here, and its addresses are checked. Only these addresses are connected to, so a
second answer of the name server cannot lead elsewhere. The certificate is verified for the name of
the host. Redirects are not followed, and of an answer only the status and one header are kept.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import httpcore
import trio

from escapement.clock import Clock
from escapement.errors import InvalidRequest
from escapement.push.addresses import Network, is_allowed, refusal
from escapement.push.outcome import Outcome, failed, outcome_of
from escapement.push.target import Target

# The most bytes of an answer that are read. If there are more, the connection is closed.
MAX_ANSWER_BYTES: Final = 64 * 1024
# How long a connection stays open without a post.
_IDLE_S: Final = 10.0

# Opens connections to addresses.
TCP: Final = httpcore.TrioBackend()

# Returns the addresses of a host.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, from the resolver of the system. Raises ``OSError``."""
    found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Poster:
    """Posts the messages of one target, over connections that it keeps.

    Args:
      allowed: the networks that the operator has allowed.
      authorities: the certificates to trust.
      network: opens connections to addresses that are allowed.
    """

    def __init__(
        self,
        target: Target,
        allowed: Sequence[Network],
        authorities: ssl.SSLContext,
        clock: Clock,
        resolve: Resolve = resolve,
        network: httpcore.AsyncNetworkBackend = TCP,
    ) -> None:
        self._target = target
        self._clock = clock
        plain = target.endpoint.scheme == "http"
        backend = CheckedNetwork(allowed, resolve, network, plain=plain)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=authorities,
            max_connections=target.concurrency,
            keepalive_expiry=_IDLE_S,
            network_backend=backend,
        )

    async def post(self, body: bytes, headers: dict[str, str]) -> Outcome:
        """Post a message and return the outcome. Without an answer in time, it has failed."""
        with trio.move_on_after(self._target.timeout_ms / 1000):
            try:
                return await self._post(body, headers)
            except InvalidRequest as error:
                return failed(str(error))
            except (OSError, ssl.SSLError, httpcore.NetworkError, httpcore.ProtocolError) as error:
                return failed(f"{type(error).__name__}: {error}"[:200])
        return failed(f"no answer within {self._target.timeout_ms} ms")

    async def _post(self, body: bytes, headers: dict[str, str]) -> Outcome:
        url, given = self._target.endpoint.url, list(headers.items())
        async with self._pool.stream("POST", url, headers=given, content=body) as answer:
            # Read to the end, so that the connection can be used again.
            with suppress(AnswerTooLong):
                async for _ in answer.aiter_stream():
                    pass
        asked = next((v for name, v in answer.headers if name.lower() == b"retry-after"), None)
        text = None if asked is None else asked.decode("latin-1")
        return outcome_of(answer.status, text, self._clock.now_ms())

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Opens connections, only to addresses that may be connected to.

    Args:
      plain: whether the connections are without TLS, which only allowed networks may have.
    """

    def __init__(
        self,
        allowed: Sequence[Network],
        resolve: Resolve,
        network: httpcore.AsyncNetworkBackend,
        *,
        plain: bool,
    ) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._network = network
        self._plain = plain

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Resolve a host, check all its addresses, and connect to the first one that answers.

        Raises:
          InvalidRequest: if one of the addresses must not be connected to.
          OSError, httpcore.NetworkError: if none can be reached.
        """
        addresses = await self._resolve(host, port)
        for address in addresses:
            self._check(host, address)
        last: Exception = OSError(f"{host} has no address")
        for address in addresses:
            try:
                stream = await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
                return _BoundedStream(stream)
            except httpcore.NetworkError as error:
                last = error
        raise last

    def _check(self, host: str, address: str) -> None:
        why = refusal(address, self._allowed)
        if why:
            raise InvalidRequest(
                f"{host} has the address {address}, which is {why}. If posts may go there, start "
                "`escapement push` with --allow-network."
            )
        if self._plain and not is_allowed(address, self._allowed):
            raise InvalidRequest(
                f"{host} has the address {address}, to which only https:// is allowed. Allow plain "
                "HTTP to it with `escapement push --allow-network`."
            )

    async def connect_unix_socket(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        raise AssertionError("a target is no Unix socket")

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class AnswerTooLong(httpcore.ReadError):
    """Raised when an answer is longer than ``MAX_ANSWER_BYTES``."""


class _BoundedStream(httpcore.AsyncNetworkStream):
    """A connection from which no more than a bounded answer to each post is read."""

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left = MAX_ANSWER_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._left:
            raise AnswerTooLong(f"the answer has more than {MAX_ANSWER_BYTES} bytes")
        data = await self._stream.read(min(max_bytes, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._left = MAX_ANSWER_BYTES
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
