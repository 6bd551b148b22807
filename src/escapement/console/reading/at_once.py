"""Several requests of one page at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from escapement.broker.crash import one_error

# The most requests of one page that wait for their answers.
AT_ONCE: Final = 16


async def at_once(requests: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Call some async functions, ``AT_ONCE`` at a time. If one fails, raise its error."""
    limit = trio.CapacityLimiter(AT_ONCE)

    async def call(request: Callable[[], Awaitable[Any]]) -> None:
        async with limit:
            await request()

    with one_error():
        async with trio.open_nursery() as nursery:
            for request in requests:
                nursery.start_soon(call, request)
