"""The access rules of /admin/v1.

Only programs on the machine of the broker may use the API, because the side port has no TLS. If the
log has tokens, a request needs one, and its role must have the right that the verb needs.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from escapement.broker.access.access import Access
from escapement.broker.access.audited import Origin, reason_in
from escapement.broker.access.caller import Caller
from escapement.http.sender import Refused, bearer_token, check_without_token, is_local

# The header with the reason of a request, for the audit log.
REASON_HEADER: Final = "Escapement-Reason"


async def caller_of(request: Request, access: Access) -> Caller:
    """Return the sender of a request, with the rights of its token.

    The content type of a request must be JSON (``app.py``), which web sites cannot send to another
    host.

    Raises:
      Refused: if the sender may not use the API.
      Unauthenticated: if the log has tokens, and the request has none that is valid.
    """
    if not is_local(request):
        raise Refused("only programs on the machine of the broker may use /admin/v1")
    if access.is_open:
        check_without_token(request)
    peer = "" if request.client is None else f"{request.client.host}:{request.client.port}"
    caller = Caller(access, origin=Origin("http", peer, _reason(request)))
    await caller.admit(bearer_token(request))
    return caller


def _reason(request: Request) -> str:
    """Return the reason in the header of a request, which is UTF-8; "" if it has none."""
    text = request.headers.get(REASON_HEADER, "")
    return reason_in(text.encode("latin-1").decode("utf-8", "replace"))
