"""The tokens and grants of a broker, in memory and in the database.

The broker reads both when it starts. After that only its own verbs change them: first durably, and
then in memory, where the change takes effect at once. Then a task tells all sessions, which close
what their roles have lost. It does so also when a token expires.

A log without tokens is *open*: every client is a superuser. It is never open again once it has a
token, because the row of a revoked token stays until its role gets another one.

Bounds: ``MAX_TOKENS`` stored tokens and ``MAX_GRANTS`` grants. A role has at most
``VALID_TOKENS`` valid tokens, so that one can replace the other, and ``MAX_ROLE_GRANTS`` grants.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import trio

from escapement.access.grant import Action, Grant
from escapement.access.pattern import ALL, Pattern
from escapement.access.rights import Rights
from escapement.access.token import Token
from escapement.broker.registry.changes import Changes, Read
from escapement.clock import Clock
from escapement.errors import (
    AlreadyExists,
    Conflict,
    EscapementError,
    LimitExceeded,
    NotFound,
    Unauthenticated,
    WrongBundle,
)
from escapement.storage.catalog.grants import put_grant, read_grants, remove_grant
from escapement.storage.catalog.tokens import (
    TokenRecord,
    insert_token,
    note_uses,
    read_tokens,
    revoke_token,
)
from escapement.storage.engine.base import Connection

# The valid tokens of a role: the one in use, and the one that is to replace it.
VALID_TOKENS: Final = 2
MAX_TOKENS: Final = 10_000
MAX_GRANTS: Final = 10_000
# A check looks at all grants of a role.
MAX_ROLE_GRANTS: Final = 256
# How long a token may be used after its expiry.
_EXPIRY_CHECK_S: Final = 1.0
# The last uses of tokens are stored this often at most.
USES_INTERVAL_S: Final = 60.0
# The name under which changes take turns.
_LOCK: Final = "access"


class Access:
    """The tokens and grants of a broker.

    Args:
      changes: makes changes durable.
      bundle_id: the bundle that the broker owns. All bundles share tokens and grants, and only the
        owner of bundle 0 changes them. The other brokers read them again after a change.

    Attributes:
      catch_up: returns when the changes of other brokers have taken effect. Call it before a
        refusal.
    """

    def __init__(
        self,
        changes: Changes,
        clock: Clock,
        tokens: Iterable[TokenRecord],
        grants: Iterable[Grant],
        bundle_id: int = 0,
    ) -> None:
        self.catch_up: Callable[[], Awaitable[None]] = _at_once
        self._bundle_id = bundle_id
        self.rights = Rights(grants)
        self._changes = changes
        self._clock = clock
        self._tokens = {token.id: token for token in tokens}
        self._uses: dict[str, int] = {}  # when tokens were last used, unless that is stored
        self._watchers: set[Callable[[], None]] = set()
        self._changed = trio.Event()
        self._used = trio.Event()

    @property
    def is_open(self) -> bool:
        """Whether every client is a superuser, because the log has no tokens."""
        return not self._tokens

    def _check_bundle(self) -> None:
        if self._bundle_id:
            raise WrongBundle(
                "All bundles share the tokens and grants. Only the broker that owns bundle 0"
                f" changes them, and this broker owns bundle {self._bundle_id}.",
                0,
            )

    # -- clients ---------------------------------------------------------------

    def may_be_new(self, text: str) -> bool:
        """Return whether a text is a token that the broker does not know, of another or none."""
        try:
            return Token.parse(text).id not in self._tokens
        except Unauthenticated:
            return False

    def authenticate(self, text: str) -> TokenRecord:
        """Return the stored token of a client.

        Args:
          text: the token as the client sent it; "" if it sent none.

        Raises:
          Unauthenticated: if the token is missing, mistyped, unknown, expired or revoked.
        """
        if not text:
            raise Unauthenticated(
                "This broker requires a token. Pass it with `connect(url, token=...)`, in the "
                "variable ESCAPEMENT_TOKEN, or in a file with ESCAPEMENT_TOKEN_FILE or "
                "`escapement --token-file`."
            )
        token = Token.parse(text)
        record = self._tokens.get(token.id)
        if record is None or not token.has_digest(record.digest):
            raise Unauthenticated(
                f"This broker does not know the token {token.id}. Check that it belongs to this "
                "broker, or create another with `escapement admin tokens create ROLE`."
            )
        self.check(record.id)
        self._uses[record.id] = self._clock.now_ms()
        self._used.set()
        return record

    def check(self, token_id: str) -> None:
        """Raise ``Unauthenticated`` unless a token that was authenticated is still valid."""
        record = self._tokens.get(token_id)
        state = "revoked" if record is None else record.state(self._clock.now_ms())
        if state != "valid":
            role = "ROLE" if record is None else record.role
            raise Unauthenticated(
                f"The token {token_id} is {state}. Create another with "
                f"`escapement admin tokens create {role}`."
            )

    def watch(self, changed: Callable[[], None]) -> None:
        """Register a function to call after rights or tokens have changed."""
        self._watchers.add(changed)

    def unwatch(self, changed: Callable[[], None]) -> None:
        """Forget a function that ``watch`` registered."""
        self._watchers.discard(changed)

    # -- tokens ----------------------------------------------------------------

    def token(self, id: str) -> TokenRecord | None:
        """Return the stored token with this id."""
        return self._tokens.get(id)

    def tokens(self) -> list[TokenRecord]:
        """Return all stored tokens with their last uses, by role and age."""
        found = [
            replace(one, used_at_ms=self._uses.get(one.id, one.used_at_ms))
            for one in self._tokens.values()
        ]
        return sorted(found, key=lambda one: (one.role, one.created_at_ms, one.id))

    async def create_token(
        self, role: str, id: str, digest: bytes, expires_at_ms: int | None
    ) -> TokenRecord:
        """Store a new token of a role, and delete the expired and revoked ones of the role.

        Raises:
          Conflict: if the log has no tokens yet. The first one must be of a superuser, or all
            clients would be locked out.
          AlreadyExists: if a token has this id.
          LimitExceeded: if the role has two valid tokens, or the broker has too many tokens.
        """
        self._check_bundle()
        async with self._changes.alone(_LOCK):
            if self.is_open:
                raise Conflict(
                    "The first token must be of a superuser: create it on the machine of the "
                    "broker with `escapement admin bootstrap`."
                )
            self._check_id(id)
            now_ms = self._clock.now_ms()
            valid, dead = self._of_role(role, now_ms)
            if len(valid) >= VALID_TOKENS:
                ids = " and ".join(one.id for one in valid)
                raise LimitExceeded(
                    f"Role {role} has {VALID_TOKENS} valid tokens already, {ids}. Revoke one: "
                    f"`escapement admin tokens revoke {valid[0].id}`."
                )
            record = TokenRecord(id, role, digest, now_ms, expires_at_ms)
            self._check_room(dead)
            await self._changes.durably(
                lambda connection: insert_token(connection, record, [one.id for one in dead])
            )
            self._enter(record, dead)
            return record

    async def bootstrap(self, role: str, id: str, digest: bytes) -> None:
        """Store a token of a superuser, on the request of the broker's own machine.

        If the role has two valid tokens, the older one is revoked.

        Raises:
          LimitExceeded: if the broker has too many tokens or grants.
        """
        self._check_bundle()
        async with self._changes.alone(_LOCK):
            if id in self._tokens:
                return  # the broker stopped before it could delete the request
            now_ms = self._clock.now_ms()
            valid, dead = self._of_role(role, now_ms)
            dead += valid[: max(len(valid) - VALID_TOKENS + 1, 0)]
            record = TokenRecord(id, role, digest, now_ms)
            self._check_room(dead)
            grant = self._merged(role, ALL, frozenset(("admin",)))

            def store(connection: Connection) -> None:
                insert_token(connection, record, [one.id for one in dead])
                put_grant(connection, grant)

            await self._changes.durably(store)
            self.rights.put(grant)
            self._enter(record, dead)

    async def revoke_token(self, id: str) -> TokenRecord:
        """Revoke a token for good. Raises ``NotFound``."""
        self._check_bundle()
        async with self._changes.alone(_LOCK):
            record = self._tokens.get(id)
            if record is None:
                raise NotFound(f"There is no token {id}: see `escapement admin tokens list`.")
            if record.revoked_at_ms is None:
                now_ms = self._clock.now_ms()
                await self._changes.durably(lambda connection: revoke_token(connection, id, now_ms))
                record = self._tokens[id] = replace(record, revoked_at_ms=now_ms)
                self._changed.set()
            return record

    def _of_role(self, role: str, now_ms: int) -> tuple[list[TokenRecord], list[TokenRecord]]:
        """Return the valid tokens of a role, oldest first, and the others."""
        found = [one for one in self.tokens() if one.role == role]
        valid = [one for one in found if one.is_valid(now_ms)]
        return valid, [one for one in found if not one.is_valid(now_ms)]

    def _check_id(self, id: str) -> None:
        if id in self._tokens:
            raise AlreadyExists(f"A token has the id {id} already. Create another.")

    def _check_room(self, dead: list[TokenRecord]) -> None:
        if len(self._tokens) - len(dead) >= MAX_TOKENS:
            raise LimitExceeded(f"A broker has at most {MAX_TOKENS} tokens.")

    def _enter(self, record: TokenRecord, dead: list[TokenRecord]) -> None:
        self._tokens[record.id] = record
        for one in dead:
            del self._tokens[one.id]
            self._uses.pop(one.id, None)
        self._changed.set()

    # -- grants ----------------------------------------------------------------

    async def add_grant(self, role: str, pattern: Pattern, actions: frozenset[Action]) -> Grant:
        """Add actions to the grant of a role for a pattern.

        Raises:
          LimitExceeded: if the role or the broker has too many grants.
        """
        self._check_bundle()
        async with self._changes.alone(_LOCK):
            grant = self._merged(role, pattern, actions)
            await self._changes.durably(lambda connection: put_grant(connection, grant))
            self.rights.put(grant)
            return grant

    async def remove_grant(
        self, role: str, pattern: Pattern, actions: frozenset[Action] | None
    ) -> Grant:
        """Remove actions, or all of them, from the grant of a role for exactly this pattern.

        Returns:
          The grant with the actions that are left.

        Raises:
          NotFound: if the role has no grant for exactly this pattern.
        """
        self._check_bundle()
        async with self._changes.alone(_LOCK):
            old = self.rights.find(role, pattern)
            if old is None:
                raise NotFound(
                    f"Role {role} has no grant for exactly {pattern}: see "
                    "`escapement admin grants list`."
                )
            left = frozenset[Action]() if actions is None else old.actions - actions
            grant = Grant(role, pattern, left)
            if left:
                await self._changes.durably(lambda connection: put_grant(connection, grant))
                self.rights.put(grant)
            else:
                await self._changes.durably(
                    lambda connection: remove_grant(connection, role, pattern)
                )
                self.rights.remove(role, pattern)
            self._changed.set()
            return grant

    def _merged(self, role: str, pattern: Pattern, actions: frozenset[Action]) -> Grant:
        old = self.rights.find(role, pattern)
        if old is not None:
            return Grant(role, pattern, old.actions | actions)
        if len(self.rights) >= MAX_GRANTS or self.rights.count(role) >= MAX_ROLE_GRANTS:
            raise LimitExceeded(
                f"A role has at most {MAX_ROLE_GRANTS} grants, and a broker {MAX_GRANTS}. Use "
                "patterns that cover more topics."
            )
        return Grant(role, pattern, actions)

    async def refresh(self, source: Read) -> None:
        """Read tokens and grants again, because another broker has changed them.

        Changes of this broker wait, because what is read must not replace them.
        """
        async with self._changes.alone(_LOCK):
            tokens, grants = await source(
                lambda connection: (read_tokens(connection), read_grants(connection))
            )
            self._tokens = {token.id: token for token in tokens}
            self.rights = Rights(grants)
            self._changed.set()

    # -- tasks -----------------------------------------------------------------

    async def run(self) -> None:
        """Tell sessions of changes and expired tokens, and store last uses, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._announce)
            nursery.start_soon(self._store_uses)

    async def _announce(self) -> None:
        while True:
            next_ms = self._next_expiry_ms()
            if next_ms is None:
                await self._changed.wait()
            else:
                left_s = (next_ms - self._clock.now_ms()) / 1000
                with trio.move_on_after(min(max(left_s, 0.0), _EXPIRY_CHECK_S)):
                    await self._changed.wait()
            if self._changed.is_set() or self._next_expiry_ms() != next_ms:
                self._changed = trio.Event()
                for changed in list(self._watchers):
                    changed()

    def _next_expiry_ms(self) -> int | None:
        now_ms = self._clock.now_ms()
        return min(
            (
                one.expires_at_ms
                for one in self._tokens.values()
                if one.expires_at_ms is not None and one.is_valid(now_ms)
            ),
            default=None,
        )

    async def _store_uses(self) -> None:
        while True:
            await self._used.wait()
            self._used = trio.Event()
            with suppress(EscapementError):  # the next use is stored when the database is back
                await self._store(dict(self._uses))
            await trio.sleep(USES_INTERVAL_S)

    async def _store(self, uses: dict[str, int]) -> None:
        await self._changes.durably(lambda connection: note_uses(connection, uses.items()))
        for id, at_ms in uses.items():
            if id in self._tokens:
                self._tokens[id] = replace(self._tokens[id], used_at_ms=at_ms)
            if self._uses.get(id) == at_ms:
                del self._uses[id]


async def _at_once() -> None:
    """Return: this broker makes all changes itself."""
