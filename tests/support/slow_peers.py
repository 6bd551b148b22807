"""Peers that connect and send a byte a second: ``python slow_peers.py PORT COUNT [--tls]``.

They come from several loopback addresses. A peer whose connection is closed connects again. The
bytes are the beginning of a valid frame, or of a TLS record. Prints the number of connections that
were opened, once a second.
"""

from __future__ import annotations

import errno
import socket
import sys
import time
from typing import Final

ADDRESSES: Final = 50
_TICKS: Final = 50  # in a second
_FRAME: Final = b"\x00\x00\x0f\xff\x94\x01\x01" + b"x" * 4096
_RECORD: Final = b"\x16\x03\x01\x02\x00\x01" + b"x" * 512


class SlowPeer:
    """One peer."""

    def __init__(self, number: int, port: int, stream: bytes) -> None:
        self._from = f"127.0.1.{1 + number % ADDRESSES}"
        self._port = port
        self._stream = stream
        self._socket: socket.socket | None = None
        self._sent = 0
        self.opened = 0

    def step(self) -> None:
        """Send a byte; connect if there is no connection."""
        if self._socket is None:
            self._connect()
            return
        try:
            if self._socket.recv(4096) == b"":
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        try:
            at = self._sent % len(self._stream)
            self._sent += self._socket.send(self._stream[at : at + 1])
        except BlockingIOError:
            pass
        except OSError:
            self._close()

    def _connect(self) -> None:
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.bind((self._from, 0))
        self._sent = 0
        if self._socket.connect_ex(("127.0.0.1", self._port)) not in (0, errno.EINPROGRESS):
            self._close()
        self.opened += 1

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def main() -> None:
    """Run until the process is killed."""
    port, count = int(sys.argv[1]), int(sys.argv[2])
    stream = _RECORD if "--tls" in sys.argv else _FRAME
    peers = [SlowPeer(number, port, stream) for number in range(count)]
    at_s = time.monotonic()
    tick = 0
    while True:
        for peer in peers[tick % _TICKS :: _TICKS]:
            peer.step()
        tick += 1
        if tick % _TICKS == 0:
            print(sum(peer.opened for peer in peers), flush=True)
        at_s += 1 / _TICKS
        time.sleep(max(at_s - time.monotonic(), 0))


if __name__ == "__main__":
    main()
