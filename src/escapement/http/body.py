"""The body of a request, with a bound."""

from __future__ import annotations

from contextlib import aclosing

from starlette.requests import Request

from escapement.errors import InvalidRequest


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
      InvalidRequest: if it has more than ``most_bytes``.
    """
    body = bytearray()
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            body += part
            if len(body) > most_bytes:
                raise InvalidRequest(f"The body has more than {most_bytes} bytes.")
    return bytes(body)
