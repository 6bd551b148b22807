"""The effect of an answer on a message. Pure."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, NamedTuple

from escapement.clock import unix_ms

# The longest wait that an endpoint can ask for with Retry-After.
MAX_RETRY_AFTER_MS: Final = 3_600_000
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_MAY_ASK_TO_WAIT: Final = (429, 503)


class Verdict(Enum):
    """The fate of a message after a post."""

    ACKNOWLEDGE = "acknowledge"
    RETRY = "retry"
    REJECT = "reject"


class Outcome(NamedTuple):
    """The end of a post.

    Attributes:
      reason: for people, such as "HTTP 503".
      wait_ms: how long the endpoint wants to be left alone; None if it does not say.
    """

    verdict: Verdict
    reason: str
    wait_ms: int | None = None


def failed(reason: str) -> Outcome:
    """Return the outcome of a post without an answer."""
    return Outcome(Verdict.RETRY, reason)


def outcome_of(status: int, retry_after: str | None, now_ms: int) -> Outcome:
    """Return the outcome of a post that was answered.

    Args:
      status: the HTTP status.
      retry_after: the header Retry-After, if the answer has it.
    """
    reason = f"HTTP {status}"
    if 200 <= status < 300:
        return Outcome(Verdict.ACKNOWLEDGE, reason)
    if 400 <= status < 500 and status not in _MAY_ASK_TO_WAIT:
        return Outcome(Verdict.REJECT, reason)
    wait_ms = None
    if retry_after is not None and status in _MAY_ASK_TO_WAIT:
        wait_ms = _wait_ms(retry_after.strip(), now_ms)
    return Outcome(Verdict.RETRY, reason, wait_ms)


def _wait_ms(text: str, now_ms: int) -> int | None:
    """Return the wait that Retry-After asks for, at most the longest; None if it is not valid."""
    if _SECONDS.fullmatch(text):
        wait_ms = int(text) * 1000
    else:
        try:
            at = parsedate_to_datetime(text)
            # A date without a zone is in UTC, as all dates of HTTP are.
            wait_ms = unix_ms(at if at.tzinfo else at.replace(tzinfo=UTC)) - now_ms
        except (ValueError, OverflowError):
            return None
    return min(max(wait_ms, 0), MAX_RETRY_AFTER_MS)
