"""Access control: an operator changes tokens and grants, and looks into the audit log.

The first token takes effect for all clients of the run: those without a token of their own get it.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.access.token import Token
from escapement.broker.front.bootstrap import Bootstrap
from escapement.errors import AlreadyExists, EscapementError, NotFound
from escapement.storage.bootstrap_request import BootstrapRequest
from simulation.checks.auditing import Action
from simulation.checks.guarding import Granted, GuardCheck, TokenLife
from simulation.clocks import HOUR_S, MOST_SKEW_MS
from simulation.features.audited_request import audited
from simulation.features.feature import KEPT, REPEATED_S, Feature, Topics
from simulation.features.guarded_client import WATCHED, GuardedClient
from simulation.world import World

_NAMESPACE: Final = "public/guarded"
# Their names belong to different bundles, unless there is one only.
_TOPICS: Final = (f"{_NAMESPACE}/b", f"{_NAMESPACE}/d")
_PATTERNS: Final = (*_TOPICS, f"{_NAMESPACE}/*")
_OPERATOR: Final = "operator"
_ROLES: Final = ("r0", "r1", "r2")
_ACTIONS: Final = ("produce", "consume", "peek", "cancel", "admin")
# The broker allows as many valid tokens of a role.
_VALID_TOKENS: Final = 2
_CLIENTS: Final = 2
_MEAN_S: Final = 5 * HOUR_S
# The share of changes after which a client uses the tokens and grants of the role at once.
_VISIT_SHARE: Final = 0.3
_CHANGES: Final = {"create": 4, "revoke": 2, "rotate": 2, "add": 8, "remove": 8, "look": 1}
# The share of tokens that expire.
_EXPIRING: Final = 0.3
# Longer than the operator may have to repeat its request.
_EXPIRY_S: Final = (48 * HOUR_S, 150 * HOUR_S)
_PAGE: Final = 1_000
# The beginning of the reasons of requests.
_REASONS: Final = "guarded "


class Guarding(Feature):
    """Creates, rotates and revokes tokens, and adds and removes grants of three roles."""

    namespace: ClassVar[str] = _NAMESPACE
    topics: ClassVar[Topics] = {
        topic: {f"g{number}": "shared", WATCHED: KEPT} for number, topic in enumerate(_TOPICS)
    }

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.check: GuardCheck = GuardCheck(3 * MOST_SKEW_MS)
        self.check.audit.skew_ms = 3 * MOST_SKEW_MS
        for role in _ROLES:
            for pattern in _PATTERNS:
                self.check.grants[role, pattern] = [Granted(from_ms=0)]
        self.strangers: list[TokenLife] = []
        self._clients = 0
        self._numbers: Final = count()  # of the reasons of requests

    async def begin(self) -> None:
        """Create the first token, and the namespace with it."""
        token = self._new_token()
        host, broker = next(
            (host, one) for host in self._world.hosts for one in host.brokers if not one.bundle_id
        )
        BootstrapRequest(_OPERATOR, token.id, token.digest).write(host.disk.root)
        await Bootstrap(host.engine, lambda: broker, host.disk.root, required=False).take()
        assert not broker.services.access.is_open
        self._world.token = token.text
        now_ms = self._history.now_ms()
        for text in ("", self._new_token().text, Token(token.id, "0" * 64).text):
            self.strangers.append(TokenLife(text, "of a stranger", "nobody", revoked_ms=now_ms))
        await super().begin()

    def _new_token(self) -> Token:
        return Token(self._rng.randbytes(6).hex(), self._rng.randbytes(32).hex())

    async def run(self, end_ms: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(_CLIENTS):
                nursery.start_soon(self._client().run, end_ms)
            await self._operate(end_ms, nursery)

    def _client(self) -> GuardedClient:
        self._clients += 1
        return GuardedClient(
            self._world, self.check, _TOPICS, self.strangers, self.action, self._clients
        )

    # -- the operator ----------------------------------------------------------------

    async def _operate(self, end_ms: int, nursery: trio.Nursery) -> None:
        """Change tokens and grants. Some changes are followed by a session of the same role."""
        for role in _ROLES:
            await self._create(role)
            await self._add(role)
            await self._add(role)
        while self._history.now_ms() < end_ms:
            # A request without an answer may take effect until then.
            await trio.sleep(REPEATED_S + self._rng.uniform(0, 2 * _MEAN_S))
            (kind,) = self._rng.choices(list(_CHANGES), list(_CHANGES.values()))
            role = self._rng.choice(_ROLES)
            match kind:
                case "create":
                    await self._create(role)
                case "revoke":
                    await self._revoke(role)
                case "rotate":
                    await self._create(role)
                    await trio.sleep(REPEATED_S + self._rng.uniform(0, _MEAN_S))
                    await self._revoke(role)
                case "add":
                    await self._add(role)
                case "remove":
                    await self._remove(role)
                case "look":
                    await self.look()
            tokens = [one for one in self.check.tokens if one.role == role][-_VALID_TOKENS:]
            if self._rng.random() < _VISIT_SHARE:
                at = self._rng.choice(self._world.hosts)
                nursery.start_soon(self._client().visit, self._rng.choice(tokens), at, end_ms)

    def _tokens_of(self, role: str) -> list[TokenLife]:
        """Return the tokens of a role that may be valid, the oldest first."""
        now_ms = self._history.now_ms()
        return [
            one
            for one in self.check.tokens
            if one.role == role and not one.is_surely_invalid(now_ms, now_ms, MOST_SKEW_MS)
        ]

    async def _create(self, role: str) -> None:
        if len(self._tokens_of(role)) >= _VALID_TOKENS:
            return
        token = self._new_token()
        life = TokenLife(token.text, token.id, role, self._history.now_ms())
        arguments: dict[str, Any] = {"role": role, "id": token.id}
        if self._rng.random() < _EXPIRING:
            life.expires_ms = life.called_ms + int(self._rng.uniform(*_EXPIRY_S) * 1000)
            arguments["expires_at_ms"] = life.expires_ms
        self.check.tokens.append(life)
        await self._change("tokens.create", role, arguments, AlreadyExists, digest=token.digest)
        life.created_ms = self._history.now_ms()

    async def _revoke(self, role: str) -> None:
        """Revoke the oldest token of a role."""
        if tokens := self._tokens_of(role):
            life = tokens[0]
            life.revoking_ms = self._history.now_ms()
            await self._change("tokens.revoke", life.id, {"id": life.id}, None)
            life.revoked_ms = self._history.now_ms()

    async def _add(self, role: str) -> None:
        pattern = self._rng.choice(_PATTERNS)
        (before,) = self.check.grants[role, pattern][-1:]
        actions = set(self._rng.sample(_ACTIONS[:-1], 2))
        if self._rng.random() < 0.2:
            actions = {"admin"}
        await self._set("grants.add", role, pattern, before.actions | actions, [*actions], None)

    async def _remove(self, role: str) -> None:
        """Remove some actions, or all, of a grant of a role, if it has one."""
        granted = [
            (pattern, some[-1].actions)
            for (one, pattern), some in self.check.grants.items()
            if one == role and some[-1].actions
        ]
        if granted:
            pattern, before = self._rng.choice(granted)
            actions = self._rng.choice([None, None, [self._rng.choice(sorted(before))]])
            left = frozenset[str]() if actions is None else before.difference(actions)
            await self._set("grants.remove", role, pattern, left, actions, NotFound)

    async def _set(
        self,
        verb: str,
        role: str,
        pattern: str,
        left: frozenset[str],
        actions: list[str] | None,
        done: type[EscapementError] | None,
    ) -> None:
        """Change a grant, so that the actions ``left`` are left."""
        granted = Granted(actions=left, called_ms=self._history.now_ms())
        self.check.grants[role, pattern].append(granted)
        arguments: dict[str, Any] = {"role": role, "pattern": pattern}
        if actions is not None:
            arguments["actions"] = sorted(actions)
        await self._change(verb, pattern, arguments, done)
        granted.from_ms = self._history.now_ms()

    async def _change(
        self,
        verb: str,
        object: str,
        arguments: dict[str, Any],
        done: type[EscapementError] | None,
        **secret: Any,
    ) -> None:
        """Make a change, again until its answer comes.

        Args:
          done: the error that says that an earlier try has made it.
        """
        repeated = False
        while True:
            action = self.action(_OPERATOR, verb, object, arguments)
            try:
                async with self._world.connect() as client:
                    await self._compare(client)
                    action.called_ms = self._history.now_ms()
                    ask = partial(client.because(action.reason).admin, verb, **arguments, **secret)
                    line = client._lines.of_bundle(0)
                    await audited(self._history, self.check.audit, action, line, ask)
                break
            except EscapementError as error:
                if done is not None and isinstance(error, done) and (repeated or not action.once):
                    break
                if not error.retryable:
                    raise
                repeated = True
            await trio.sleep(REPEATED_S + self._rng.uniform(0, 3 * HOUR_S))
        self._history.counts[verb] += 1

    def action(self, role: str, verb: str, object: str, arguments: dict[str, Any]) -> Action:
        """Return a request with a reason of its own."""
        reason = f"{_REASONS}{next(self._numbers)}"
        return Action(reason, role, verb, object, arguments, self._history.now_ms())

    # -- looks -----------------------------------------------------------------------

    async def _compare(self, client: escapement.Broker) -> None:
        """Compare all tokens and grants of the database with the changes."""
        called_ms = self._history.now_ms()
        tokens = await client.admin("tokens.list")
        grants = await client.admin("grants.list")
        self.check.listed(
            {row["id"]: row["state"] for row in tokens},
            {(row["role"], row["pattern"]): frozenset(row["actions"]) for row in grants},
            called_ms,
            self._history.now_ms(),
        )

    async def look(self) -> None:
        """Compare the audit log with the requests."""
        await self._ask_surely(_TOPICS[0], self._read_audit_log)

    async def _read_audit_log(self, client: escapement.Broker) -> None:
        called_ms = self._history.now_ms()
        rows: list[Any] = []
        more: dict[str, Any] | None = {}
        while more is not None:
            page = await client.admin("audit.list", count=_PAGE, **more)
            rows += [one for one in page["actions"] if (one["reason"] or "").startswith(_REASONS)]
            more = None if page["next"] is None else {"before": page["next"]}
        self.check.recorded(rows, called_ms)
        self._history.counts["audit reads"] += 1
