"""Errors in the format of RFC 9457, application/problem+json."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from escapement.errors import EscapementError
from escapement.event_log import EventLog
from escapement.http.statuses import status_of

MEDIA_TYPE: Final = "application/problem+json"
# When a refused request may be sent again, in seconds.
RETRY_AFTER_S: Final = 1

_log = EventLog(__name__)


class Problem(Struct):
    """Why a request was refused, or failed.

    ``code`` is stable, such as not_found. A ``retryable`` request may succeed later as it is.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    retryable: bool


def problem(error: EscapementError) -> Response:
    """Return the answer to a request that ended with an error of ours."""
    return _answer(status_of(error), str(error), error.code, retryable=error.retryable)


async def no_such_route(request: Request, error: Exception) -> Response:
    """Return the answer to a request with a path or a method that the gateway does not have."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    detail = f"{request.method} {request.url.path}: {status.phrase}"
    answer = _answer(status, detail, status.name.lower())
    answer.headers.update(error.headers or {})
    return answer


async def failed(request: Request, error: Exception) -> Response:
    """Return the answer to a request that a mistake in the gateway has ended."""
    _log.exception("gateway.bug", "a request failed because of a bug")
    detail = "The gateway could not carry out the request. Its log has the reason."
    return _answer(HTTPStatus.INTERNAL_SERVER_ERROR, detail, "internal")


def _answer(status: HTTPStatus, detail: str, code: str, *, retryable: bool = False) -> Response:
    body = Problem("about:blank", status.phrase, status, detail, code, retryable)
    headers = {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if retryable:
        headers["retry-after"] = str(RETRY_AFTER_S)
    return Response(msgspec.json.encode(body), status, headers, MEDIA_TYPE)
