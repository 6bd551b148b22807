"""A user of the console who needs no browser: requests to the application in the process.

Tests of what a page has need no more. Live parts need a browser (``tab.py``), because a request for
one ends only with the page.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from html import unescape
from typing import Any, Final

import httpx
import trio

from escapement.console.app import ConsoleApp
from escapement.console.config import ConsoleConfig
from escapement.gateway.clients import Clients, Connect
from escapement.testing import World
from escapement.testing.clock import VirtualClock

LOCAL: Final = ("127.0.0.1", 1)
_URL: Final = "http://127.0.0.1:7653"
# The secret of the session, which each page has for its forms.
_SECRET: Final = re.compile(r'"x-csrf-token": "([^"]+)"')
_TAGS: Final = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL)

Fields = Mapping[str, str | Sequence[str]]


class Visitor:
    """A user: a session of the console, and the cookies of a browser.

    Attributes:
      http: the client of the application. It follows no redirects.
    """

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http: Final = http

    async def get(self, path: str, *, part: bool = False) -> httpx.Response:
        """Load a page; with ``part`` as htmx loads a part of it."""
        return await self.http.get(path, headers={"hx-request": "true"} if part else {})

    async def text(self, path: str) -> str:
        """Load a page, which must succeed, and return its text without tags."""
        answer = await self.get(path)
        assert answer.status_code == 200, (answer.status_code, text_of(answer))
        return text_of(answer)

    async def secret(self) -> str:
        """Return the secret of the session."""
        found = _SECRET.search((await self.get("/")).text)
        assert found is not None, "the user is not signed in"
        return unescape(found[1])

    async def send(self, path: str, fields: Fields, *, secret: str | None = None) -> httpx.Response:
        """Send a form of a page. ``secret`` replaces that of the session.

        Return the answer, or the page to which it redirects.
        """
        if secret is None:
            secret = await self.secret()
        data = {
            name: value if isinstance(value, str) else [*value] for name, value in fields.items()
        }
        answer = await self.http.post(path, data={"csrf": secret, **data}, headers={"origin": _URL})
        if answer.is_redirect:
            return await self.get(answer.headers["location"])
        return answer


@asynccontextmanager
async def visiting(
    world: World, token: str = "", *, client: tuple[str, int] = LOCAL, **config: Any
) -> AsyncIterator[Visitor]:
    """Run a console for a broker, and visit it.

    Args:
      token: the token to sign in with; "" if the broker has no access control.
      client: the address of the browser.
      config: fields of the console's configuration, such as ``banner``.
    """

    def connect(token: str) -> Any:
        return world.connect(token=token or None)

    async with visiting_at(connect, world.clock, token, client=client, **config) as visitor:
        yield visitor


@asynccontextmanager
async def visiting_at(
    connect: Connect,
    clock: VirtualClock,
    token: str = "",
    *,
    client: tuple[str, int] = LOCAL,
    **config: Any,
) -> AsyncIterator[Visitor]:
    """Run a console that connects to brokers with ``connect``, and visit it, as ``visiting``."""
    config = ConsoleConfig("127.0.0.1", 0, **config)
    async with trio.open_nursery() as nursery:
        clients = Clients(connect, nursery)
        app = ConsoleApp(config, clients, clock.now_ms)
        transport = httpx.ASGITransport(app.asgi, client=client, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=_URL) as http:
            visitor = Visitor(http)
            if token:
                answer = await http.post("/login", data={"token": token}, headers={"origin": _URL})
                assert answer.status_code == 303, text_of(answer)
            yield visitor
        await clients.close()
        nursery.cancel_scope.cancel()


def text_of(answer: httpx.Response) -> str:
    """Return the text of an HTML page, with one space between words."""
    return " ".join(unescape(_TAGS.sub(" ", answer.text)).split())
