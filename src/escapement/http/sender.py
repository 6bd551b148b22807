"""Who sent a request: the holder of its token, or a program on this machine."""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import urlsplit

from starlette.requests import Request

from escapement.errors import EscapementError
from escapement.loopback import is_loopback

# The headers by which a proxy says for whom it sends a request.
_FORWARDED: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})


class Refused(EscapementError):
    """Raised when the sender of a request may not use a server."""

    code: ClassVar[str] = "forbidden"


def bearer_token(request: Request) -> str:
    """Return the token of the header ``Authorization: Bearer TOKEN``; "" if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def is_local(request: Request) -> bool:
    """Return whether a program on this machine has sent the request."""
    return request.client is not None and is_loopback(request.client.host)


def check_without_token(request: Request) -> None:
    """Check a request from this machine that has no token.

    A browser on this machine could send requests of a web site. So the request must name a
    loopback address as its host. Nor may a proxy have forwarded it: its clients may be anywhere.

    Raises:
      Refused: if the request may come from somewhere else.
    """
    host = _hostname(request.headers.get("host", ""))
    if not is_loopback(host):
        raise Refused(f"the request names the host {host!r}; address the server as 127.0.0.1")
    if not _FORWARDED.isdisjoint(request.headers):
        raise Refused(
            "a proxy forwarded the request, and it has no token: everyone who reaches the proxy "
            "would be a superuser; create a token with `escapement admin bootstrap`"
        )


def _hostname(host: str) -> str:
    """Return the name or address in the header Host, without the port; "" if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # such as "["
        return ""
