"""The function ``connect``, which connects a client to a broker and keeps it connected."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from os import strerror
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from escapement.client.broker import Broker
from escapement.client.connection.address import Address, Addresses
from escapement.client.connection.lines import Lines
from escapement.client.connection.link import Stream, StreamFactory
from escapement.client.connection.route import Dial
from escapement.client.connection.tls import ClientFiles, reason_of
from escapement.client.connection.token_source import TokenSource
from escapement.client.settings import Settings
from escapement.client.tracing.tracing import Tracing
from escapement.client.unopened import Unopened
from escapement.clock import elapsed_s
from escapement.errors import Disconnected, InvalidRequest


def connect(
    url: str = "escapement://localhost",
    *,
    name: str = "",
    token: str | None = None,
    token_file: str | Path | None = None,
    stream_factory: StreamFactory | None = None,
    settings: Settings | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    tracing: Tracing | None = None,
    clock_s: Callable[[], float] = elapsed_s,
) -> AbstractAsyncContextManager[Broker]:
    """Connect to a broker, and stay connected until the ``async with`` block ends.

    When the connection is lost, the client reconnects, and its producers and consumers continue.
    When the block ends without an error, the client waits until the broker has answered all
    publishes and acknowledgements, for at most ``close_timeout_s`` of the settings. When the block
    raises an exception, the client does not wait.

    Args:
      url: the address of the broker, ``escapement://host:port``, or ``escapements://host:port``
        for TLS. Without ``:port`` the port is 7650. If several brokers share a database, give some
        of their addresses, ``escapement://a:7650,b:7650``. The client tries them in turn, and
        learns the others from them.
      name: a name for this client, which it sends to the broker. Brokers do not use it yet.
      token: the token that proves the client's role, if the broker requires one. Without it and
        ``token_file``, the client uses the variable ``ESCAPEMENT_TOKEN``, or else the file that
        ``ESCAPEMENT_TOKEN_FILE`` names.
      token_file: a file with the token. It is read at each connection, so the token in it can be
        replaced while the client runs.
      stream_factory: an async callable that returns an anyio byte stream, to use instead of a
        TCP connection to ``url``.
      settings: the timeouts of the client.
      ca_file: with TLS, a PEM file of the authorities to trust, instead of those of the system.
        The default is the environment variable ESCAPEMENT_CA_FILE. The certificate and the name
        of the broker are always verified.
      cert_file, key_file: with TLS, PEM files of the client's certificate and its key. The
        defaults are ESCAPEMENT_CERT_FILE and ESCAPEMENT_KEY_FILE.
      tracing: how to trace with OpenTelemetry. By default, the client traces if the application has
        set a tracer provider before it connects.
      clock_s: a monotonic clock in seconds, which tells how long messages have waited in the
        client. A test may give a virtual one. Any thread may call it.

    Raises:
      InvalidRequest: if ``url`` is not the address of a broker, or a file cannot be used.
      Unauthenticated: if the broker requires a token and got none, or not a valid one. A mistyped
        token is refused before the client connects.
      Disconnected: if the first attempt to connect fails, at every address. The error names them.
      EscapementError: if the broker refuses the connection.
    """
    addresses, source = Addresses.parse(url), TokenSource(token, token_file)
    if (ca_file or cert_file or key_file) and not addresses.tls:
        raise InvalidRequest(f"ca_file, cert_file and key_file need escapements://, not {url}")
    server = addresses[0] if stream_factory is None else None
    tracer = (tracing or Tracing())._tracer(server, name)
    settings, described = settings or Settings(), None
    if stream_factory is not None:
        dial, described = _always(stream_factory), "the broker"
    elif addresses.tls:
        dial = _tls(ClientFiles.of(ca_file, cert_file, key_file))
    else:
        dial = _tcp
    return Connecting(Lines(dial, addresses, name, settings, source, tracer, described, clock_s))


def _always(factory: StreamFactory) -> Dial:
    """Return a function that opens a stream with ``factory``, whatever the address."""

    async def dial(address: Address) -> Stream:
        return await factory()

    return dial


class Connecting(Unopened, AbstractAsyncContextManager[Broker]):
    """The context manager of ``connect``."""

    _BEFORE = (
        "before the client is connected: write `async with escapement.connect(...) as broker:`"
    )

    def __init__(self, lines: Lines) -> None:
        self._context = _connected(lines)

    async def __aenter__(self) -> Broker:
        return await self._context.__aenter__()

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._context.__aexit__(*error)


@asynccontextmanager
async def _connected(lines: Lines) -> AsyncIterator[Broker]:
    link = await lines.connect()
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            lines.begin(tasks, link)
            try:
                yield Broker(lines, link.welcome)
                await _finish(lines)
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                failure = error  # raised below, so that it is not wrapped in an exception group
            finally:
                lines.close(Disconnected("the connection was closed by this side"))
            tasks.cancel_scope.cancel()
    finally:
        # Raise it even if this task was cancelled in the meantime. Otherwise it would be lost.
        if failure is not None:
            raise failure


async def _finish(lines: Lines) -> None:
    with anyio.move_on_after(lines.settings.close_timeout_s):
        await lines.drain()
        await lines.say_goodbye()


def _tls(files: ClientFiles) -> Dial:
    async def dial(address: Address) -> Stream:
        context = await anyio.to_thread.run_sync(files.context)
        try:
            return await anyio.connect_tcp(
                address.host,
                address.port,
                ssl_context=context,
                tls_hostname=address.host,
                # Frames have lengths, so a cut-off stream is noticed without TLS's own end mark.
                tls_standard_compatible=False,
            )
        except ssl.SSLError as error:
            raise OSError(reason_of(error)) from error
        except OSError as error:
            raise OSError(_reason(error)) from error

    return dial


async def _tcp(address: Address) -> Stream:
    try:
        return await anyio.connect_tcp(address.host, address.port)
    except OSError as error:
        raise OSError(_reason(error)) from error


def _reason(error: OSError) -> str:
    """Return why no IP address of the host accepted a connection."""
    cause = error.__cause__ or error
    tried = cause.exceptions if isinstance(cause, BaseExceptionGroup) else [cause]
    return ", ".join(dict.fromkeys(_text(each) for each in tried))


def _text(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return str(error)
    # The text of asyncio is "Connect call failed", and not the one that belongs to the number. The
    # numbers of failed name lookups are negative.
    if error.errno is not None and error.errno > 0:
        return strerror(error.errno)
    return error.strerror or str(error)
