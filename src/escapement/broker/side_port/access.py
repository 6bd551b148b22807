"""The access rules of /admin/v1.

This module is the one place where access control is added. For now, only programs on this machine
may use the API, and they may do everything. With tokens, ``principal_of`` takes the bearer token of
the request (``bearer_token``), and returns the role of that token.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import urlsplit

from starlette.requests import Request

from escapement.broker.side_port.config import is_loopback
from escapement.errors import EscapementError

_LOCAL_OPERATOR: Final = "local operator"


class Refused(EscapementError):
    """Raised when the sender of a request may not use the API."""

    code: ClassVar[str] = "forbidden"


def principal_of(request: Request) -> str:
    """Return the name of the sender of a request.

    A browser on this machine could send requests of a web site. So a request must also name a
    loopback address as its host, and its content type must be JSON (``app.py``), which web sites
    cannot send to another host.

    Raises:
      Refused: if the sender may not use the API.
    """
    if request.client is None or not is_loopback(request.client.host):
        raise Refused("only programs on the machine of the broker may use /admin/v1")
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if not is_loopback(host):
        raise Refused(f"the request names the host {host!r}; address the broker as 127.0.0.1")
    return _LOCAL_OPERATOR


def bearer_token(request: Request) -> str | None:
    """Return the token of the header ``Authorization: Bearer TOKEN``; None if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
