"""The bodies of requests, with bounds: for each one its size and its time, and for all together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

import trio
from starlette.requests import ClientDisconnect, Request

from escapement.errors import Busy, InvalidRequest

# The longest time in which a body must arrive. A request that is read counts as one in progress.
LONGEST_S: Final = 60.0


async def read_body(
    request: Request, most_bytes: int, take: Callable[[int], None] | None = None
) -> bytes:
    """Return the body of a request.

    Args:
      take: called with the size of each part before it is kept. It may raise an error.

    Raises:
      InvalidRequest: if it has more than ``most_bytes``, ends early, or does not arrive in time.
    """
    body = bytearray()
    try:
        with trio.move_on_after(LONGEST_S):
            async with aclosing(request.stream()) as stream:
                async for part in stream:
                    if len(body) + len(part) > most_bytes:
                        raise InvalidRequest(f"The body has more than {most_bytes} bytes.")
                    if take is not None:
                        take(len(part))
                    body += part
            return bytes(body)
    except ClientDisconnect:
        raise InvalidRequest("The sender has disconnected before the end of the body.") from None
    raise InvalidRequest(f"The body has not arrived within {LONGEST_S:g} s.")


class Bodies:
    """The bodies of the requests in progress.

    Args:
      most_bytes: the most bytes of all of them together.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0

    @asynccontextmanager
    async def lend(self, request: Request, most_bytes: int) -> AsyncIterator[bytes]:
        """Lend the body of a request.

        Raises:
          Busy: if there is no room for it now.
          InvalidRequest: see ``read_body``.
        """
        taken_bytes = 0

        def take(size_bytes: int) -> None:
            nonlocal taken_bytes
            if self._bytes + size_bytes > self._most_bytes:
                raise Busy("The requests in progress are too large. Try again.")
            self._bytes += size_bytes
            taken_bytes += size_bytes

        try:
            yield await read_body(request, most_bytes, take)
        finally:
            self._bytes -= taken_bytes
