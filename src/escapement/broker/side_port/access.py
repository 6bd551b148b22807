"""The access rules of /admin/v1.

Only programs on the machine of the broker may use the API, because the side port has no TLS. If the
log has tokens, a request needs one, and its role must have the right that the verb needs.
"""

from __future__ import annotations

from typing import ClassVar, Final
from urllib.parse import urlsplit

from starlette.requests import Request

from escapement.broker.access.access import Access
from escapement.broker.access.caller import Caller
from escapement.errors import EscapementError
from escapement.loopback import is_loopback

# The headers by which a proxy says for whom it sends a request.
_FORWARDED: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})


class Refused(EscapementError):
    """Raised when the sender of a request may not use the API."""

    code: ClassVar[str] = "forbidden"


async def caller_of(request: Request, access: Access) -> Caller:
    """Return the sender of a request, with the rights of its token.

    A browser on this machine could send requests of a web site. So a request without a token must
    also name a loopback address as its host, and its content type must be JSON (``app.py``), which
    web sites cannot send to another host. Nor may a proxy have forwarded it: its clients may be
    anywhere.

    Raises:
      Refused: if the sender may not use the API.
      Unauthenticated: if the log has tokens, and the request has none that is valid.
    """
    if request.client is None or not is_loopback(request.client.host):
        raise Refused("only programs on the machine of the broker may use /admin/v1")
    if access.is_open:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if not is_loopback(host):
            raise Refused(f"the request names the host {host!r}; address the broker as 127.0.0.1")
        if not _FORWARDED.isdisjoint(request.headers):
            raise Refused(
                "a proxy forwarded the request, and the broker has no tokens: everyone who reaches "
                "the proxy would be a superuser; create a token with `escapement admin bootstrap`"
            )
    caller = Caller(access)
    await caller.admit(_bearer_token(request))
    return caller


def _bearer_token(request: Request) -> str:
    """Return the token of the header ``Authorization: Bearer TOKEN``; "" if there is none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
