"""The cookie with the id of a session.

A browser sends the cookies of a host to all of its ports. So the name of the cookie has the port:
several consoles on one machine do not end each other's sessions.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from escapement.console.visit.sessions import IDLE_S

_NAME: Final = "escapement_console"
_PORT: Final = re.compile(r":([0-9]{1,5})$")


def name(request: Request) -> str:
    """Return the name of the cookie at the address that the browser has opened."""
    port = _PORT.search(request.headers.get("host", ""))
    return _NAME if port is None else f"{_NAME}_{port[1]}"


def read(request: Request) -> str:
    """Return the id of the session that a request names; "" if it names none."""
    return request.cookies.get(name(request), "")


def write(request: Request, response: Response, id: str) -> None:
    """Let the browser send the id of a session with its requests."""
    origin = request.headers.get("origin", "")
    response.set_cookie(
        name(request),
        id,
        max_age=int(IDLE_S),
        httponly=True,
        # With "strict", a link in a chat would open the console as if not signed in.
        samesite="lax",
        # If a proxy ends TLS, the origin of the form to sign in still names the scheme.
        secure=request.scope["scheme"] == "https" or origin.startswith("https://"),
    )


def delete(request: Request, response: Response) -> None:
    """Let the browser forget the id."""
    response.delete_cookie(name(request))
