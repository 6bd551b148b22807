"""The small broker of ``client_peer`` behind a real socket, for the blocking client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from escapement.sync import Broker
from support.client_peer import Peer


@contextmanager
def listening() -> Iterator[tuple[Peer, BlockingPortal, str]]:
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(Peer.running()) as peer:
            listener = portal.call(listen)
            future = portal.start_task_soon(listener.serve, peer.serve)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            try:
                yield peer, portal, f"escapement://127.0.0.1:{port}"
            finally:
                portal.call(peer.cut)
                portal.call(listener.aclose)
                future.cancel()


async def listen() -> Any:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    return listener.listeners[0]


@contextmanager
def busy(broker: Broker) -> Iterator[None]:
    """Keep the client's event loop busy until the ``with`` block ends."""
    began, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        began.set()
        may_end.wait()

    broker._loop.post(wait)
    began.wait()
    try:
        yield
    finally:
        may_end.set()


def until(broker: Broker, condition: Callable[[], object]) -> None:
    """Let the client's event loop run until another thread or task has made a condition true."""

    async def run() -> None:
        while not condition():
            await anyio.lowlevel.checkpoint()

    broker._loop.call(run)
