"""Tokens and grants: clients with both are served, and clients without one are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from histories.history import NEVER_MS, History
from simulation.checks.auditing import AuditCheck
from simulation.checks.setting import Setting, perhaps

# How long a token may be used after its expiry.
_EXPIRED_MS = 2_000


@dataclass(slots=True, kw_only=True)
class Granted(Setting):
    """The actions that a role may carry out by its grant for one pattern."""

    actions: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class TokenLife:
    """A token: when it was created, revoked, and expires. Strangers have tokens, too.

    A change took effect between the call of the operator and the answer.
    """

    text: str
    id: str
    role: str
    called_ms: int = NEVER_MS  # creation
    created_ms: int = NEVER_MS
    revoking_ms: int = NEVER_MS
    revoked_ms: int = NEVER_MS
    expires_ms: int = NEVER_MS

    def is_surely_valid(self, from_ms: int, to_ms: int, skew_ms: int) -> bool:
        """Return whether it is valid for a whole time."""
        return self.created_ms <= from_ms and to_ms < min(
            self.revoking_ms, self.expires_ms - skew_ms
        )

    def is_surely_invalid(self, known_ms: int, at_ms: int, skew_ms: int) -> bool:
        """Return whether a broker must refuse it.

        Args:
          known_ms: the broker knows all changes that were confirmed by then.
        """
        return (
            at_ms < self.called_ms < NEVER_MS
            or self.revoked_ms <= known_ms
            or self.expires_ms + skew_ms + _EXPIRED_MS <= at_ms
        )


class Request(NamedTuple):
    """A request of a client. Without an action, it needs a token only."""

    token: TokenLife
    called_ms: int
    action: str = ""
    topic: str = ""

    def __str__(self) -> str:
        about = f"{self.action} {self.topic}" if self.action else "connect"
        return f"role {self.token.role!r} with token {self.token.id} to {about} at {self.called_ms}"


@dataclass
class GuardCheck:
    """No client is refused that surely has a token and a right, and none is served without them.

    Args:
      skew_ms: the most that two clocks differ by.
      grants: of each role and pattern, in order.
    """

    skew_ms: int
    grants: dict[tuple[str, str], list[Granted]] = field(default_factory=dict)
    tokens: list[TokenLife] = field(default_factory=list)
    audit: AuditCheck = field(default_factory=lambda: AuditCheck(0))
    found: list[str] = field(default_factory=list)

    # -- what holds ------------------------------------------------------------------

    def surely_allowed(self, request: Request, now_ms: int) -> bool:
        """Return whether the role has the right for the whole time of a request."""
        return any(
            all(_allows(one, request.action) for one in perhaps(some, request.called_ms, now_ms))
            for some in self._covering(request)
        )

    def surely_forbidden(self, request: Request, known_ms: int, now_ms: int) -> bool:
        """Return whether a broker must refuse a request because of the token or the right.

        Args:
          known_ms: the broker knows all changes that were confirmed by then.
        """
        if request.token.is_surely_invalid(known_ms, request.called_ms, self.skew_ms):
            return True
        return request.action != "" and not any(
            _allows(one, request.action)
            for some in self._covering(request)
            for one in perhaps(some, known_ms, now_ms)
        )

    def _covering(self, request: Request) -> Iterator[list[Granted]]:
        """Yield the grants of a role for the patterns that cover a topic."""
        for (role, pattern), some in self.grants.items():
            beginning = pattern.removesuffix("*")
            covers = (
                request.topic.startswith(beginning)
                if beginning != pattern
                else request.topic == pattern
            )
            if role == request.token.role and covers:
                yield some

    # -- answers to clients ----------------------------------------------------------

    def served(self, request: Request, known_ms: int, now_ms: int) -> None:
        """Note that a broker did what a client asked for."""
        if self.surely_forbidden(request, known_ms, now_ms):
            self.found.append(f"access: a broker allowed {request}, until {now_ms}")

    def denied(self, request: Request, now_ms: int) -> None:
        """Note that a broker refused a request because of a missing right."""
        if self.surely_allowed(request, now_ms):
            self.found.append(f"access: a broker denied {request}, until {now_ms}")

    def unauthenticated(self, request: Request, now_ms: int) -> None:
        """Note that a broker refused a request because of its token."""
        if request.token.is_surely_valid(request.called_ms, now_ms, self.skew_ms):
            self.found.append(f"access: a broker did not know {request}, until {now_ms}")

    def told(
        self, request: Request, own: Mapping[str, frozenset[str]], known_ms: int, now_ms: int
    ) -> None:
        """Compare the grants that a broker told a client with those of its role."""
        for (role, pattern), some in self.grants.items():
            actions = own.get(pattern, frozenset())
            states = {one.actions for one in perhaps(some, known_ms, now_ms)}
            if role == request.token.role and actions not in states:
                self.found.append(
                    f"access: a broker named the actions {sorted(actions)} on {pattern} to"
                    f" {request}"
                )

    def listed(
        self,
        tokens: Mapping[str, str],
        grants: Mapping[tuple[str, str], frozenset[str]],
        called_ms: int,
        now_ms: int,
    ) -> None:
        """Compare the tokens and grants of the database with the answers to the operator.

        Args:
          tokens: the state of each token that was listed, by its id.
        """
        for token in self.tokens:
            state = tokens.get(token.id)
            if token.is_surely_valid(called_ms, now_ms, self.skew_ms) and state != "valid":
                self.found.append(f"access: the valid token {token.id} is listed as {state}")
            if token.revoked_ms < called_ms and state not in (None, "revoked"):
                self.found.append(f"access: the revoked token {token.id} is listed as {state}")
        for key, some in self.grants.items():
            actions = grants.get(key, frozenset())
            if actions not in {one.actions for one in perhaps(some, called_ms, now_ms)}:
                self.found.append(f"access: the grant of {key} is listed with {sorted(actions)}")

    def recorded(self, rows: Sequence[Mapping[str, Any]], called_ms: int) -> None:
        """Note all rows of the audit log; see ``AuditCheck.listed``."""
        self.audit.listed(rows, called_ms)

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find lost ones."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield wrong answers, and mistakes in the audit log."""
        yield from self.found
        yield from self.audit.found


def _allows(granted: Granted, action: str) -> bool:
    return not granted.actions.isdisjoint((action, "admin"))
