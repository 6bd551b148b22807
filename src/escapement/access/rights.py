"""The rights of all roles, and the decision whether a role may do something.

A request *needs* actions on patterns. A role may carry it out if, for each need, one of its grants
has the action and covers the pattern. Everything else is denied.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from escapement.access.coverage import Coverage
from escapement.access.grant import Action, Grant
from escapement.access.pattern import Pattern
from escapement.errors import AccessDenied


class Need(NamedTuple):
    """An action that a request needs, on everything that the pattern covers.

    A request whose answer shows only what the role may see needs the action on a ``part`` of it.
    """

    action: Action
    pattern: Pattern
    part: bool = False


class Rights:
    """The grants of all roles. A role has at most one grant for each pattern."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._by_role: dict[str, dict[Pattern, Grant]] = {}
        for grant in grants:
            self.put(grant)

    def __iter__(self) -> Iterator[Grant]:
        """Iterate over all grants, by role and pattern."""
        for role in sorted(self._by_role):
            yield from self.of(role)

    def __len__(self) -> int:
        return sum(map(len, self._by_role.values()))

    def of(self, role: str) -> list[Grant]:
        """Return the grants of a role, by pattern."""
        return [grant for _, grant in sorted(self._by_role.get(role, {}).items())]

    def count(self, role: str) -> int:
        """Return how many grants a role has."""
        return len(self._by_role.get(role, ()))

    def find(self, role: str, pattern: Pattern) -> Grant | None:
        """Return the grant of a role for exactly this pattern."""
        return self._by_role.get(role, {}).get(pattern)

    def put(self, grant: Grant) -> None:
        """Add a grant, or replace the one that the role has for this pattern."""
        self._by_role.setdefault(grant.role, {})[grant.pattern] = grant

    def remove(self, role: str, pattern: Pattern) -> None:
        """Remove the grant of a role for exactly this pattern."""
        grants = self._by_role[role]
        del grants[pattern]
        if not grants:
            del self._by_role[role]

    def allows(self, role: str, need: Need) -> bool:
        """Return whether a grant of the role meets the need; O(grants of the role)."""
        grants = self._by_role.get(role, {}).values()
        if need.part:
            return any(grant.reaches(need.action, need.pattern) for grant in grants)
        return any(grant.allows(need.action, need.pattern) for grant in grants)

    def coverage(self, role: str, action: Action) -> Coverage:
        """Return on what a role may carry out an action."""
        grants = self._by_role.get(role, {}).values()
        return Coverage(one.pattern for one in grants if one.allows(action, one.pattern))

    def check(self, role: str, needs: Iterable[Need]) -> None:
        """Raise ``AccessDenied`` unless a role may do all that is needed."""
        for need in needs:
            if not self.allows(role, need):
                raise denied(role, need)


def denied(role: str, need: Need) -> AccessDenied:
    """Return the error for a missing right. It names the smallest grant that would do."""
    action, pattern = need.action, need.pattern.text
    part = "any part of " if need.part else ""
    return AccessDenied(
        f"Role {role} lacks the right '{action}' on {part}{pattern}. A role with 'admin' there can "
        f"add it: `escapement admin grants add {role} {shlex.quote(pattern)} --actions {action}`."
    )
