"""The server process: it listens, serves, recovers from a damaged index, and stops cleanly.

The server first checks what an operator may have set wrongly, the quickest check first: the data
directory, the port, the database, the lease. Only then does it read the log. It accepts connections
when recovery is done.

A damaged index needs no operator. The broker crashes, and the same process starts a new broker,
which rebuilds the index from the log.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

import trio

from escapement.broker.broker import Broker
from escapement.broker.config import BrokerConfig
from escapement.broker.crash import one_error
from escapement.broker.front.bootstrap import Bootstrap, check_exposure
from escapement.broker.front.certificates import Certificates, TlsFiles
from escapement.broker.front.front import Front
from escapement.broker.runners import Runners
from escapement.broker.service_manager import notify
from escapement.broker.side_port.config import SidePortConfig
from escapement.broker.side_port.shown import Shown
from escapement.clock import SystemClock
from escapement.errors import (
    IndexDamaged,
    StorageError,
    StorageUnavailable,
)
from escapement.event_log import EventLog, log_fields
from escapement.loopback import is_loopback
from escapement.protocol.limits import DEFAULT_PORT
from escapement.storage.commit.lane import FIRST_PROBE_S, LAST_PROBE_S
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.base import TransactionAborted
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
    # Whether other machines may connect to a broker without tokens, on which everyone may do all.
    insecure: bool = False
    broker: BrokerConfig = field(default_factory=BrokerConfig)
    tls: TlsFiles | None = None  # None: without TLS
    http: SidePortConfig | None = None  # None: no HTTP side port


async def serve(config: ServerConfig, on_ready: Callable[[str], None] = lambda at: None) -> None:
    """Serve until SIGTERM or SIGINT, then stop cleanly. SIGHUP reads the TLS files again.

    Args:
      on_ready: called with ``host:port`` each time the server begins to accept connections.

    Raises:
      EscapementError: if the server cannot start, or must not continue; the message says why.
    """
    sys.setswitchinterval(_SWITCH_S)
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
            identity = Identity(directory.identity, f"{host}:{port}", directory.place)
            at = f"{host}:{port}"

            def ready() -> None:
                _log.info(
                    "broker.ready", "ready on %s", at, address=at, version=version("escapement")
                )
                on_ready(at)

            def make_broker() -> Broker:
                runners = Runners.in_threads(
                    config.broker.limits.commit_lanes,
                    len(config.broker.outboxes),
                    len(config.broker.tables),
                )
                return Broker(
                    engine, directory.index, identity, SystemClock(), runners, config.broker
                )

            def announce() -> None:
                ready()
                notify("READY=1")

            shown = Shown()
            with log_fields(broker=identity.owner_id), one_error():
                async with trio.open_nursery() as beside:
                    if config.http is not None:
                        # Imported here, because its packages are an extra.
                        from escapement.broker.side_port.side_port import run_side_port

                        beside.start_soon(run_side_port, config.http, shown)
                    if certificates is not None:
                        await beside.start(_reload_on_hangup, certificates)
                    await _serve_and_repair(
                        make_broker,
                        lambda broker: Bootstrap(broker, config.data, needs_token),
                        listeners,
                        shown,
                        announce,
                        certificates,
                    )
                    beside.cancel_scope.cancel()
                _log.info("broker.stopped", "stopped")
        finally:
            engine.close()
            for listener in listeners:
                await listener.aclose()


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


async def _serve_and_repair(
    make_broker: Callable[[], Broker],
    make_bootstrap: Callable[[Broker], Bootstrap],
    listeners: list[trio.SocketListener],
    shown: Shown,
    on_ready: Callable[[], None],
    certificates: Certificates | None,
) -> None:
    """Serve until asked to stop. Start a new broker each time the index was damaged.

    The new broker rebuilds the index. While it starts, the server waits if the database is
    unavailable. At the first start, an unavailable database is an error, because the operator may
    have named the wrong one. If damage is found during the stop, the next start of the server
    rebuilds the index.
    """
    repairing, pause_s = False, FIRST_PROBE_S

    def ready() -> None:
        nonlocal repairing, pause_s
        repairing, pause_s = False, FIRST_PROBE_S
        on_ready()

    while True:
        broker = make_broker()
        try:
            with one_error():
                await _serve_once(
                    broker, make_bootstrap(broker), listeners, shown, ready, certificates
                )
            return
        except IndexDamaged as error:
            if broker.stopping:
                _log.error(
                    "index.rebuild_postponed",
                    "the next start rebuilds the delayed index from the log: %s",
                    error,
                )
                return
            _log.error("index.rebuilding", "rebuilding the delayed index from the log: %s", error)
            repairing = True
        except (StorageUnavailable, TransactionAborted) as error:
            if not repairing:
                raise
            _log.warning(
                "index.rebuild_waiting",
                "the rebuild of the index waits for the database: %s",
                error,
            )
            if broker.stopping or await _asked_to_stop(pause_s):
                return
            pause_s = min(2 * pause_s, LAST_PROBE_S)


async def _asked_to_stop(within_s: float) -> bool:
    """Wait up to ``within_s`` seconds; return whether SIGTERM or SIGINT arrives."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        with trio.move_on_after(within_s):
            await anext(signals)
            return True
    return False


async def _serve_once(
    broker: Broker,
    bootstrap: Bootstrap,
    listeners: list[trio.SocketListener],
    shown: Shown,
    on_ready: Callable[[], None],
    certificates: Certificates | None,
) -> None:
    front = Front(broker, certificates)
    broker.on_end(shown.end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_watch_signals, broker)
        async with trio.open_nursery() as connections:
            await connections.start(front.run_broker)
            await bootstrap.begin()
            connections.start_soon(bootstrap.run)
            connections.start_soon(front.accept, listeners, connections)
            shown.show(broker, front.count)
            on_ready()
            await broker.stopped.wait()
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


async def _watch_signals(broker: Broker) -> None:
    timeout_s = broker.config.limits.stop_timeout_s + LEAVE_S
    last_resort = threading.Timer(timeout_s, _leave)
    last_resort.daemon = True
    try:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if broker.stopping:
                    raise KeyboardInterrupt  # the second signal: stop at once
                name = signal.Signals(number).name
                _log.info("broker.stopping", "stopping: %s", name, signal=name)
                notify("STOPPING=1")
                last_resort.start()
                broker.stop()
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
