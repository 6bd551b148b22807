"""The server process: it listens, runs a node, and stops cleanly.

The server first checks what an operator may have set wrongly, the quickest check first: the data
directory, the port, the database, the lease. Only then does the node read the log. The server
accepts connections when the recovery of the node's bundles is done.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import trio

from escapement.broker.config import BrokerConfig
from escapement.broker.crash import one_error
from escapement.broker.front.bootstrap import Bootstrap, check_exposure
from escapement.broker.front.certificates import Certificates, TlsFiles
from escapement.broker.node.node import Node
from escapement.broker.node.own_address import warn_if_unknown
from escapement.broker.runners import Runners
from escapement.broker.service_manager import notify
from escapement.broker.side_port.config import SidePortConfig
from escapement.broker.side_port.shown import Shown
from escapement.clock import SystemClock
from escapement.errors import StorageError
from escapement.event_log import EventLog, log_fields
from escapement.failpoints import set_by_environment
from escapement.loopback import is_loopback
from escapement.protocol.limits import DEFAULT_PORT
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.open import open_engine
from escapement.storage.lease import Identity

_log = EventLog(__name__)

DEFAULT_HOST: Final = "127.0.0.1"
# How long a thread that computes (a checkpoint, a fetch) may keep the event loop waiting. Python's
# default of 5 ms would be half a tick of 10 ms.
_SWITCH_S: Final = 0.001
_BACKLOG: Final = 1024
# How often to look for a port that is free on all addresses. One attempt usually suffices, because
# most ports that are free on one address are free on the others too.
_PORT_ATTEMPTS: Final = 20
_ADVICE: Final = {
    errno.EADDRINUSE: "is another broker running? (--listen chooses another port)",
    errno.EADDRNOTAVAIL: "this machine does not have the address; choose another with --listen",
    errno.EACCES: "ports below 1024 need root privileges; choose another with --listen",
}
# How much longer than the broker's own stop timeout the process may live after a signal. Together
# they are less than ten seconds.
LEAVE_S: Final = 1.5


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of `escapement serve`."""

    data: Path
    log_url: str | None = None  # None: SQLite in the data directory
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    # The host and the port that clients and other brokers are told; None: by the other settings.
    advertise: tuple[str, int | None] | None = None
    # Whether other machines may connect to a broker without tokens, on which everyone may do all.
    insecure: bool = False
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    tls: TlsFiles | None = None  # None: without TLS
    http: SidePortConfig | None = None  # None: no HTTP side port
    bundles: int | None = None  # of a new database; None: one


async def serve(
    config: ServerConfig,
    on_ready: Callable[[str], None] = lambda at: None,
    companion: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. SIGHUP reads the TLS files again.

    Args:
      on_ready: called with ``host:port`` when the server begins to accept connections.
      companion: runs with ``host:port`` from then on; it is cancelled at the end.

    Raises:
      EscapementError: if the server cannot start, or must not continue; the message says why.
    """
    sys.setswitchinterval(_SWITCH_S)
    if actions := set_by_environment():
        _log.warning("failpoints.set", "this broker fails on purpose: %s", actions)
    certificates = None if config.tls is None else Certificates(config.tls)
    with DataDirectory.open(config.data) as directory:
        listeners = await listen(config.host, config.port)
        host, port = listeners[0].socket.getsockname()[:2]
        engine = open_engine(config.log_url, config.data)
        try:
            exposed = not all(is_loopback(one.socket.getsockname()[0]) for one in listeners)
            needs_token = exposed and not config.insecure
            if needs_token:
                await check_exposure(engine, config.data, f"{config.host}:{port}")
            address = _told(config.advertise, host, port)
            identity = Identity(directory.identity, address, directory.place)
            at = f"{host}:{port}"

            def ready() -> None:
                told = "" if address == at else f"; clients are told {address}"
                _log.info(
                    "broker.ready",
                    "ready on %s%s",
                    at,
                    told,
                    address=at,
                    advertised=address,
                    version=version("escapement"),
                )
                on_ready(at)

            shared = Runners.in_threads(
                config.broker.limits.commit_lanes,
                len(config.broker.outboxes),
                len(config.broker.tables),
            )
            shown = Shown()
            node = Node(
                engine,
                config.data,
                identity,
                address,
                SystemClock(),
                lambda: shared.with_own_commits(config.broker.limits.commit_lanes),
                config.broker,
                certificates,
                shown.show,
                config.bundles,
            )
            shown.connections = node.front.count_of

            def announce() -> None:
                shown.membership = node.membership
                ready()
                notify("READY=1")
                if companion is not None:
                    beside.start_soon(companion, _url_address(host, port))

            with log_fields(broker=identity.owner_id), one_error():
                async with trio.open_nursery() as beside:
                    beside.start_soon(warn_if_unknown, address)
                    if config.http is not None:
                        # Imported here, because its packages are an extra.
                        from escapement.broker.side_port.side_port import run_side_port

                        beside.start_soon(run_side_port, config.http, shown)
                    if certificates is not None:
                        await beside.start(_reload_on_hangup, certificates)
                    bootstrap = Bootstrap(
                        engine, lambda: node.broker_of(0), config.data, needs_token
                    )
                    await _serve_until_stopped(node, bootstrap, listeners, announce)
                    beside.cancel_scope.cancel()
                _log.info("broker.stopped", "stopped")
        finally:
            engine.close()
            for listener in listeners:
                await listener.aclose()


def _told(advertise: tuple[str, int | None] | None, host: str, port: int) -> str:
    """Return the address for clients: the listener's, or this machine's name for all addresses.

    ``advertise`` replaces both the host and the port, or only the host.
    """
    if advertise is not None:
        return _url_address(advertise[0], advertise[1] or port)
    try:
        if ip_address(host.partition("%")[0]).is_unspecified:
            host = socket.gethostname()
    except ValueError:
        pass  # a name, such as localhost
    return _url_address(host, port)


def _url_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def listen(host: str, port: int) -> list[trio.SocketListener]:
    """Listen on every address of the host. Port 0 picks one free port for all of them.

    Raises:
      StorageError: if the server cannot listen there; the message says what to do.
    """
    where = f"cannot listen on {host}:{port}"
    try:
        return await _on_one_port(host, port)
    except socket.gaierror as error:
        raise StorageError(
            f"{where}: no address is known for {host!r} ({error.strerror}); give --listen "
            "an address of this machine, such as 127.0.0.1:7650, or 0.0.0.0:7650 for all"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{where}: {error.strerror or error}; {_ADVICE.get(error.errno or 0, 'see --listen')}"
        ) from error


async def _on_one_port(host: str, port: int) -> list[trio.SocketListener]:
    """Open listeners on all addresses of the host, with the same port for IPv4 and IPv6."""
    for _ in range(_PORT_ATTEMPTS):
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
        first = listeners[0].socket.getsockname()[1]
        try:
            for at, listener in enumerate(listeners):
                address, own = listener.socket.getsockname()[:2]
                if own != first:
                    await listener.aclose()
                    (listeners[at],) = await trio.open_tcp_listeners(
                        first, host=address, backlog=_BACKLOG
                    )
            return listeners
        except OSError as error:
            for listener in listeners:
                await listener.aclose()
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no port is free on all addresses")


async def _serve_until_stopped(
    node: Node,
    bootstrap: Bootstrap,
    listeners: list[trio.SocketListener],
    on_ready: Callable[[], None],
) -> None:
    """Run a node, and accept connections from its start to its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_signals, node)
        async with trio.open_nursery() as connections:
            await connections.start(node.run)
            await bootstrap.begin()
            connections.start_soon(bootstrap.run)
            connections.start_soon(node.front.accept, listeners, connections)
            on_ready()
            await node.stopped.wait()
            connections.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def _reload_on_hangup(
    certificates: Certificates, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Read the TLS files again whenever SIGHUP arrives."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        async for _ in signals:
            await trio.to_thread.run_sync(certificates.reload)


async def _watch_signals(node: Node) -> None:
    timeout_s = node.config.limits.stop_timeout_s + LEAVE_S
    last_resort = threading.Timer(timeout_s, _leave)
    last_resort.daemon = True
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if node.stopping:
                    raise KeyboardInterrupt  # the second signal: stop at once
                name = signal.Signals(number).name
                _log.info("broker.stopping", "stopping: %s", name, signal=name)
                notify("STOPPING=1")
                last_resort.start()
                node.stop()
    finally:
        last_resort.cancel()


def _leave() -> None:
    """End the process although threads still wait for a database that does not answer.

    Such threads cannot be interrupted. Their work is left unfinished as after a crash, and the next
    start recovers from that.
    """
    _log.warning("broker.stop_incomplete", "the database does not answer: stopping without it")
    logging.shutdown()
    os._exit(0)
