"""The TCP stream under TLS, which lets the session look at each write.

A write of a session becomes one write of encrypted bytes, which may wait for a slow peer for long.
Without TLS, the session checks before each part of a write whether its peer is too slow, and
whether messages may still leave. This stream gives it the same chance.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import trio


class TlsTransport(trio.abc.Stream):
    """The TCP stream under the TLS of one connection.

    Attributes:
      stream: the TCP stream.
      wait: waits until the socket accepts more. It may end the connection instead.
      accepted: called with the number of bytes that the socket has accepted.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.wait: Callable[[], Awaitable[None]] = stream.wait_send_all_might_not_block
        self.accepted: Callable[[int], None] = lambda size_bytes: None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send encrypted bytes. Calls ``wait`` whenever the socket accepts no more."""
        await trio.lowlevel.checkpoint()
        left = memoryview(data)
        while left:
            try:
                written = os.write(self.stream.socket.fileno(), left)
            except BlockingIOError:
                await self.wait()
            except OSError as error:
                raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
            else:
                left = left[written:]
                self.accepted(written)

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self.stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self.stream.aclose()
