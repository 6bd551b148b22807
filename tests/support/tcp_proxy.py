"""A TCP proxy that loses exactly one message of a conversation, to test what follows."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

CHUNK_BYTES = 1 << 16


class LossyProxy:
    """Forwards connections to ``127.0.0.1:target_port`` until told to lose something.

    What is to be lost is recognised by a byte string in what the client sends. Then
    both sides are closed, as when a network breaks at that moment.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lose_request: bytes | None = None
        self._lose_reply: bytes | None = None
        self._arriving_bytes = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def lose_request(self, mark: bytes) -> None:
        """The next request that contains ``mark`` never arrives."""
        self._lose_request = mark

    def lose_reply(self, mark: bytes, arriving_bytes: int = 0) -> None:
        """The next request that contains ``mark`` arrives and is answered; the answer is lost.

        But for its beginning of ``arriving_bytes``.
        """
        self._lose_reply, self._arriving_bytes = mark, arriving_bytes

    def close(self) -> None:
        """No connection is left, and no thread."""
        _shut(self._listener)
        self._threads[0].join()  # nothing is added to either list any more
        for sock in self._sockets:
            _shut(sock)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
                self._sockets += [client, server]
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
    """A proxy that is gone afterwards."""
    proxy = LossyProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
