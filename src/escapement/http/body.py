"""The body of a request, with a bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

from starlette.requests import ClientDisconnect, Request

from escapement.errors import InvalidRequest


async def read_body(
    request: Request, most_bytes: int, take: Callable[[int], None] | None = None
) -> bytes:
    """Return the body of a request.

    Args:
      take: called with the size of each part before it is kept. It may raise an error.

    Raises:
      InvalidRequest: if it has more than ``most_bytes``, or ends early.
    """
    body = bytearray()
    try:
        async with aclosing(request.stream()) as stream:
            async for part in stream:
                if len(body) + len(part) > most_bytes:
                    raise InvalidRequest(f"The body has more than {most_bytes} bytes.")
                if take is not None:
                    take(len(part))
                body += part
    except ClientDisconnect:
        raise InvalidRequest("The sender has disconnected before the end of the body.") from None
    return bytes(body)
