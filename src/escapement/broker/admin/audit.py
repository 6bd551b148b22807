"""The administrative operation (*verb*) on the audit log: list its rows."""

from __future__ import annotations

from functools import partial
from typing import Final, TypedDict

from escapement.broker.access.audited import full_or_same
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.errors import InvalidRequest
from escapement.storage.audit_log import NEWEST, AuditFilter, AuditRow, read_page

# The most rows of one answer. Each has some 8 KiB at most, so an answer fits a frame.
MOST_ROWS: Final = 1_000
_DEFAULT_ROWS: Final = 100


class RecordedAction(TypedDict):
    """An action: who did what, when and why, and its outcome.

    ``arguments`` is JSON. ``outcome`` is ``done`` or the code of an error; None if it is unknown.
    ``role`` is None if the log had no tokens.
    """

    at_ms: int
    role: str | None
    peer: str
    client: str
    verb: str
    object: str
    arguments: str
    reason: str | None
    outcome: str | None
    bundle: int
    broker: str


class RecordedActions(TypedDict):
    """Actions, the newest first, and the argument ``before`` of the next request, if any."""

    actions: list[RecordedAction]
    next: list[int] | None


async def _list(broker: Broker, given: Arguments) -> RecordedActions:
    role, verbs = given.optional_text("role"), given.optional_text("verbs")
    name = given.optional_text("object")
    from_ms, until_ms = given.optional_offset("from_ms"), given.optional_offset("until_ms")
    before = given.optional_numbers("before") or list(NEWEST)
    count = given.optional_number("count") or _DEFAULT_ROWS
    given.end()
    if len(before) != 2:
        raise InvalidRequest("audit.list needs 'before' as the list 'next' of an answer")
    if count > MOST_ROWS:
        raise InvalidRequest(f"audit.list answers at most {MOST_ROWS} actions: lower 'count'.")
    wanted = AuditFilter(
        role,
        verbs,
        () if name is None else tuple({name, full_or_same(name)}),
        from_ms or 0,
        NEWEST[0] if until_ms is None else until_ms,
    )
    at_ms, id = before
    rows = await broker.read_database(
        partial(read_page, wanted=wanted, before=(at_ms, id), count=count)
    )
    async with broker.answering:
        return {
            "actions": [_plain(row) for row in rows],
            "next": list(rows[-1].position) if len(rows) == count else None,
        }


def _plain(row: AuditRow) -> RecordedAction:
    action = row.action
    return {
        "at_ms": action.at_ms,
        "role": action.role or None,
        "peer": action.peer,
        "client": action.client,
        "verb": action.verb,
        "object": action.object,
        "arguments": action.arguments,
        "reason": action.reason or None,
        "outcome": row.outcome or None,
        "bundle": action.bundle_id,
        "broker": action.broker,
    }


VERBS: Final[dict[str, Verb]] = {"audit.list": _list}
