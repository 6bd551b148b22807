"""A request that the audit log records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from escapement.client.connection.line import Line
from escapement.errors import EscapementError, Unauthenticated
from histories.history import History
from simulation.checks.auditing import DONE, Action, AuditCheck

T = TypeVar("T")


async def audited(
    history: History,
    check: AuditCheck,
    action: Action,
    line: Line,
    ask: Callable[[], Awaitable[T]],
) -> T:
    """Make a request, and note its answer.

    Args:
      line: the client's line to the broker of the request.
      ask: makes the request, with the reason of the action.
    """
    check.begin(action)
    link = line.link
    try:
        answer = await ask()
    except EscapementError as error:
        # The token may have been refused after the request was carried out.
        if not error.retryable and not isinstance(error, Unauthenticated):
            action.outcome = error.code
        raise
    else:
        action.outcome = DONE
        return answer
    finally:
        action.once = link is not None and line.link is link
        action.answered_ms = history.now_ms()
