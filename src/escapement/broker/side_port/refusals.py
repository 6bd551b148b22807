"""The answers of the side port to requests that it refuses, or that fail: an error as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from escapement.errors import EscapementError
from escapement.http.statuses import status_of

_FAILED: Final = HTTPStatus.INTERNAL_SERVER_ERROR


class Error(TypedDict):
    """Why a request was refused, or failed.

    ``error`` is a code such as not_found. A ``retryable`` request may succeed later as it is.
    """

    error: str
    message: str
    retryable: bool


def refusal(error: EscapementError) -> Response:
    """Return the answer to a request that ended with an error of ours."""
    status = status_of(error)
    headers = {"www-authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    body = Error(error=error.code, message=str(error), retryable=error.retryable)
    return _answer(status, body, headers)


async def no_such_route(request: Request, error: Exception) -> Response:
    """Return the answer to a request with a path or a method that the side port does not have."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    message = f"{request.method} {request.url.path}: {status.phrase}"
    body = Error(error=status.name.lower(), message=message, retryable=False)
    return _answer(status, body, error.headers)


async def failed(request: Request, error: Exception) -> Response:
    """Return the answer to a request that a mistake in the broker has ended."""
    message = "The broker could not carry out the request. Its log has the reason."
    return _answer(_FAILED, Error(error="internal", message=message, retryable=False))


def _answer(status: HTTPStatus, body: Error, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(body, status, headers)
