"""The protection of pages in a browser: headers of each answer, and checks of each change.

A page loads scripts and styles from the console only, and no other site may show it in a frame.
A request that changes something must come from a page of the console: the browser names the site
that sends it, and the form has the secret of the session.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from escapement.console.visit.sessions import Session
from escapement.http.sender import Refused

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # With "no-referrer", the browser would not name the site that sends a form.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
# Where the style sheet and the scripts are.
STATIC: Final = "/static"
# The name of the form field, and of the header, that has the secret of the session.
CSRF_FIELD: Final = "csrf"
CSRF_HEADER: Final = "x-csrf-token"


class GuardHeaders:
    """An ASGI application that adds ``HEADERS`` to each answer that does not have its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if scope["path"].startswith(STATIC):
                    headers.setdefault("cache-control", "no-cache")  # asked again with its ETag
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, guarded if scope["type"] == "http" else send)


def check_origin(request: Request) -> None:
    """Check that a page of the console has sent a request that changes something.

    Raises:
      Refused: if another site has sent it, or the browser does not say.
    """
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    # A proxy may end TLS, so the schemes may differ.
    if not host or origin.partition("://")[2] != host:
        raise Refused(
            f"Another site has sent the request: {origin!r}. Open the console at one address. A "
            "proxy before it must pass on the headers Host and Origin."
        )


def check_secret(request: Request, session: Session, form: Mapping[str, str]) -> None:
    """Check that a form has the secret of the session.

    Raises:
      Refused: if it has another one.
    """
    given = request.headers.get(CSRF_HEADER) or form.get(CSRF_FIELD, "")
    if not secrets.compare_digest(given.encode(), session.csrf.encode()):
        raise Refused("The page is too old. Load it again, and repeat the action.")
