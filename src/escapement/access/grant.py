"""Grants: which actions a role may carry out on the topics of a pattern.

    =============  ==========================================================================
    action         effect
    =============  ==========================================================================
    ``produce``    publish; create and close groups; create schedules
    ``consume``    consume; create subscriptions; acknowledge rows of message tables
    ``peek``       look: pending messages, dead letters, reading by offset, statistics, settings
    ``cancel``     cancel and reschedule messages; pause and delete schedules; purge dead letters
    ``admin``      create, change and delete; grant rights; everything above
    =============  ==========================================================================

``admin`` includes the other actions, because it lets a role grant them to itself. A *superuser* is
a role with ``admin`` on ``*``, and a *tenant admin* one with ``admin`` on ``shop/*``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from escapement.access.pattern import Pattern
from escapement.errors import InvalidRequest
from escapement.names import MAX_NAME_LENGTH, check_name

Action = Literal["produce", "consume", "peek", "cancel", "admin"]
ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
# A role that is a URI, such as a SPIFFE id. It needs no quoting in a command line.
_URI: Final = re.compile(r"[a-z][a-z0-9+.-]*:[A-Za-z0-9._~:/@%+-]+")


@dataclass(frozen=True, slots=True)
class Grant:
    """The actions that a role may carry out on the topics of a pattern."""

    role: str
    pattern: Pattern
    actions: frozenset[Action]

    def allows(self, action: Action, pattern: Pattern) -> bool:
        """Return whether the grant allows an action on everything that ``pattern`` covers."""
        return (action in self.actions or "admin" in self.actions) and self.pattern.covers(pattern)

    def reaches(self, action: Action, pattern: Pattern) -> bool:
        """Return whether the grant allows an action on a part of what ``pattern`` covers."""
        return self.allows(action, pattern) or (
            pattern.covers(self.pattern) and self.allows(action, self.pattern)
        )

    @property
    def listed(self) -> list[Action]:
        """The actions in their usual order."""
        return [action for action in ACTIONS if action in self.actions]


def check_role(text: str) -> str:
    """Return ``text`` if it is the name of a role; raise ``InvalidRequest`` if it cannot be.

    A role has a name like that of a topic, or is a URI, as certificates name it.
    """
    if isinstance(text, str) and len(text) <= MAX_NAME_LENGTH and _URI.fullmatch(text):
        return text
    return check_name("role", text)


def read_actions(texts: Iterable[str]) -> frozenset[Action]:
    """Return the actions with these names.

    Raises:
      InvalidRequest: if a name is unknown, or there is none.
    """
    given = set(texts)
    found = frozenset(action for action in ACTIONS if action in given)
    if not found or len(found) != len(given):
        wrong = ", ".join(repr(one) for one in sorted(given - found)) or "none"
        raise InvalidRequest(
            f"Actions are one or more of {', '.join(ACTIONS)}; given: {wrong:.200}."
        )
    return found
