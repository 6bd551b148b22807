"""The administrative operation (*verb*) on the caller's own rights."""

from __future__ import annotations

from typing import Final, TypedDict

from escapement.access.grant import Action
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker


class OwnGrant(TypedDict):
    """Actions that the caller may carry out on a pattern. ``admin`` includes the others."""

    pattern: str
    actions: list[Action]


class OwnRights(TypedDict):
    """The role of the caller, its token, and its grants.

    ``role`` is None if the log has no tokens. Then the caller may do everything. ``token_id`` is
    None if the role is that of a certificate.
    """

    role: str | None
    token_id: str | None
    expires_at_ms: int | None
    grants: list[OwnGrant]


async def _own(broker: Broker, given: Arguments) -> OwnRights:
    given.end()
    caller = given.caller
    token = caller.token
    return {
        "role": caller.role,
        "token_id": None if token is None else token.id,
        "expires_at_ms": None if token is None else token.expires_at_ms,
        "grants": [
            {"pattern": grant.pattern.text, "actions": grant.listed} for grant in caller.grants()
        ],
    }


VERBS: Final[dict[str, Verb]] = {"access.own": _own}
