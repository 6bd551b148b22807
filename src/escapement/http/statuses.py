"""The HTTP status of each error."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from escapement.errors import (
    AccessDenied,
    AlreadyExists,
    BacklogFull,
    Busy,
    Conflict,
    DelaysDisabled,
    Disconnected,
    EscapementError,
    InvalidRequest,
    LeaseLost,
    LimitExceeded,
    NoOwner,
    NotFound,
    ShuttingDown,
    StorageUnavailable,
    Unauthenticated,
    WrongBundle,
)
from escapement.http.sender import Refused

STATUSES: Final[dict[type[EscapementError], HTTPStatus]] = {
    Unauthenticated: HTTPStatus.UNAUTHORIZED,
    AccessDenied: HTTPStatus.FORBIDDEN,
    Refused: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    AlreadyExists: HTTPStatus.CONFLICT,
    Conflict: HTTPStatus.CONFLICT,
    DelaysDisabled: HTTPStatus.CONFLICT,
    LimitExceeded: HTTPStatus.CONFLICT,
    InvalidRequest: HTTPStatus.BAD_REQUEST,
    WrongBundle: HTTPStatus.MISDIRECTED_REQUEST,
    BacklogFull: HTTPStatus.TOO_MANY_REQUESTS,
    Busy: HTTPStatus.SERVICE_UNAVAILABLE,
    ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    StorageUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    LeaseLost: HTTPStatus.SERVICE_UNAVAILABLE,
    NoOwner: HTTPStatus.SERVICE_UNAVAILABLE,
    Disconnected: HTTPStatus.GATEWAY_TIMEOUT,
    EscapementError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def status_of(error: EscapementError) -> HTTPStatus:
    """Return the status of the answer to a request that ended with an error of ours."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def codes_by_status() -> dict[HTTPStatus, str]:
    """Return the statuses of refused and failed requests, with the codes of their errors."""
    return {
        status: " or ".join(sorted(kind.code for kind, one in STATUSES.items() if one is status))
        for status in sorted(set(STATUSES.values()))
    }
