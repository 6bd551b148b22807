"""The administrative operations (*verbs*) on tokens: create, list, revoke.

The client makes a new token and sends only its digest, so that the token itself travels in no
request and no answer. The broker never knows it.
"""

from __future__ import annotations

from typing import Final, TypedDict

from escapement.access.grant import check_role
from escapement.access.token import DIGEST_BYTES, ID_DIGITS, is_token_id
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker
from escapement.errors import InvalidRequest
from escapement.storage.catalog.tokens import TokenRecord, TokenState


class ListedToken(TypedDict):
    """The state of a token, without its digest."""

    id: str
    role: str
    state: TokenState
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None
    used_at_ms: int | None


async def _create_token(broker: Broker, given: Arguments) -> ListedToken:
    role, id = check_role(given.text("role")), given.text("id")
    digest = given.blob("digest", DIGEST_BYTES)
    expires_at_ms = given.optional_number("expires_at_ms")
    given.end()
    if not is_token_id(id):
        raise InvalidRequest(f"tokens.create needs 'id' as {ID_DIGITS} hexadecimal digits")
    if expires_at_ms is not None and expires_at_ms <= broker.clock.now_ms():
        raise InvalidRequest("A token cannot expire in the past: 'expires_at_ms' is over.")
    return _plain(
        broker, await broker.services.access.create_token(role, id, digest, expires_at_ms)
    )


async def _list_tokens(broker: Broker, given: Arguments) -> list[ListedToken]:
    role = given.optional_text("role")
    given.end()
    async with broker.answering:
        found = broker.services.access.tokens()
        return [_plain(broker, one) for one in found if role in (None, one.role)]


async def _revoke_token(broker: Broker, given: Arguments) -> ListedToken:
    id = given.text("id")
    given.end()
    return _plain(broker, await broker.services.access.revoke_token(id))


def _plain(broker: Broker, token: TokenRecord) -> ListedToken:
    return {
        "id": token.id,
        "role": token.role,
        "state": token.state(broker.clock.now_ms()),
        "created_at_ms": token.created_at_ms,
        "expires_at_ms": token.expires_at_ms,
        "revoked_at_ms": token.revoked_at_ms,
        "used_at_ms": token.used_at_ms,
    }


VERBS: Final[dict[str, Verb]] = {
    "tokens.create": _create_token,
    "tokens.list": _list_tokens,
    "tokens.revoke": _revoke_token,
}
