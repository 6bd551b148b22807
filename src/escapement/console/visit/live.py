"""Parts of pages that follow the brokers, as server-sent events.

While a page is visible, the browser keeps one request open. The console renders the live part of
the page every ``LIVE_S`` seconds, and sends it if it has changed. The browser ends the request when
its tab is hidden, so a forgotten tab costs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

import trio
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from escapement.broker.crash import one_error
from escapement.errors import EscapementError, Unauthenticated

# How often a part is rendered.
LIVE_S: Final = 2.0
# How long a broker may take. The page then says that it does not follow it. For its first count of
# all messages, a broker takes up to 5 s before it answers that it is busy.
ANSWER_S: Final = 7.0
# After this time the browser connects again, so a new connection has the rights of that time.
LONGEST_S: Final = 10 * 60.0
# After an error that ends the connection, the browser waits for this time.
RETRY_S: Final = 5.0
# A comment that shows proxies and browsers that the connection is alive.
_ALIVE: Final = b":\n\n"
_ALIVE_EVERY: Final = 8  # rounds without a change


class EventStream(StreamingResponse):
    """An answer with events. It ends with them, with the request, or when its scope is cancelled.

    Args:
      found: the events.
      scopes: sets that have the cancel scope of the answer while it lasts.
    """

    def __init__(self, found: AsyncGenerator[bytes, None], *scopes: set[trio.CancelScope]) -> None:
        super().__init__(found, media_type="text/event-stream")
        self._found = found
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with one_error():
            async with aclosing(self._found), trio.open_nursery() as nursery:
                for one in self._scopes:
                    one.add(nursery.cancel_scope)
                try:
                    nursery.start_soon(_until_disconnected, receive, nursery.cancel_scope)
                    await self.stream_response(send)
                    nursery.cancel_scope.cancel()
                finally:
                    for one in self._scopes:
                        one.discard(nursery.cancel_scope)


async def _until_disconnected(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def events(render: Callable[[], Awaitable[str]]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a part: ``part`` with its HTML, or ``trouble`` with an error's text.

    They end when the user must sign in again.
    """
    last, quiet = b"", 0
    until_s = trio.current_time() + LONGEST_S
    while trio.current_time() < until_s:
        try:
            with trio.fail_after(ANSWER_S):
                event = _event("part", await render())
        except Unauthenticated as error:
            yield trouble(error)
            return
        except EscapementError as error:
            event = _event("trouble", str(error))
        except trio.TooSlowError:
            event = _event("trouble", f"No broker has answered for {ANSWER_S:.0f} s.")
        if event != last:
            yield event
            last, quiet = event, 0
        else:
            quiet += 1
            if quiet % _ALIVE_EVERY == 0:
                yield _ALIVE
        await trio.sleep(LIVE_S)


def trouble(error: EscapementError) -> bytes:
    """Return the event of an error. The browser then connects again after ``RETRY_S``."""
    return f"retry: {int(RETRY_S * 1000)}\n".encode() + _event("trouble", str(error))


def _event(name: str, text: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in text.splitlines() or [""])
    return f"event: {name}\n{lines}\n".encode()
