"""A TCP proxy that loses exactly one message of a connection, or everything for a while."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

CHUNK_BYTES = 1 << 16


class LossyProxy:
    """A proxy to ``127.0.0.1:target_port`` that loses a request or a reply on demand.

    A byte string in the request of the client selects the message to lose. Then the proxy closes
    both sides, as when a network breaks at that moment. ``cut`` loses everything instead and closes
    nothing, as when a switch drops all packets.
    """

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port  # of connections from now on
        self._is_cut = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lose_request: bytes | None = None
        self._lose_reply: bytes | None = None
        self._arriving_bytes = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def lose_request(self, mark: bytes) -> None:
        """Lose the next request that contains ``mark``."""
        self._lose_request = mark

    def lose_reply(self, mark: bytes, arriving_bytes: int = 0) -> None:
        """Forward the next request that contains ``mark``, and lose its reply.

        The first ``arriving_bytes`` of the reply arrive.
        """
        self._lose_reply, self._arriving_bytes = mark, arriving_bytes

    def cut(self) -> None:
        """Forward nothing from now on. Peers notice nothing but silence."""
        self._is_cut = True

    def mend(self) -> None:
        """Forward again. Connections that were open meanwhile are closed."""
        broken = list(self._sockets)
        self._is_cut = False
        for sock in broken:
            _shut(sock)

    def close(self) -> None:
        """Close all connections and end all threads."""
        _shut(self._listener)
        self._acceptor.join()  # now neither list grows
        for sock in self._sockets:
            _shut(sock)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target_port))
                except OSError:
                    _shut(client)
                    continue
                self._sockets = [one for one in self._sockets if one.fileno() >= 0]
                self._sockets += [client, server]
                self._threads = [one for one in self._threads if one.is_alive()]
                deaf = threading.Event()
                for pump in (
                    threading.Thread(target=self._requests, args=(client, server, deaf)),
                    threading.Thread(target=self._replies, args=(client, server, deaf)),
                ):
                    self._threads.append(pump)
                    pump.start()

    def _requests(
        self, client: socket.socket, server: socket.socket, deaf: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(CHUNK_BYTES):
                if self._is_cut:
                    continue
                if self._lose_request is not None and self._lose_request in data:
                    self._lose_request = None
                    break
                if self._lose_reply is not None and self._lose_reply in data:
                    self._lose_reply = None
                    deaf.set()
                server.sendall(data)
        if not deaf.is_set():
            _shut(client)
            _shut(server)

    def _replies(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK_BYTES):
                if self._is_cut:
                    continue
                if deaf.is_set():
                    data = data[: self._arriving_bytes]
                    self._arriving_bytes -= len(data)
                    if not data:
                        break
                client.sendall(data)
        _shut(client)
        _shut(server)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


@contextlib.contextmanager
def lossy_proxy(target_port: int) -> Iterator[LossyProxy]:
    """Start a proxy, and close it afterwards."""
    proxy = LossyProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
