"""A user of the console: a role and its grants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

from escapement.access.grant import Action, Grant, read_actions
from escapement.access.pattern import ALL, Pattern
from escapement.client.broker import Broker

Standing = Literal["viewer", "operator", "admin"]

# The actions that change messages. A role with one of them is an operator.
_CHANGING: Final[tuple[Action, ...]] = ("produce", "cancel", "admin")


class User:
    """A role and its grants.

    Args:
      role: the role; None if the brokers have no access control. Everything is then allowed.

    Attributes:
      standing: admin with the right ``admin`` on everything, operator with a right to change
        messages or topics somewhere, and otherwise viewer.
    """

    def __init__(self, role: str | None, grants: Iterable[Grant] = ()) -> None:
        self.role: Final = role
        self._grants: Final = tuple(grants)
        self.standing: Final[Standing] = self._standing()

    @classmethod
    async def of(cls, broker: Broker) -> User:
        """Return the user whose token a connection has."""
        answer: dict[str, Any] = await broker.admin("access.own")
        role = answer["role"]
        return cls(
            role,
            (
                Grant(role, Pattern.parse(one["pattern"]), read_actions(one["actions"]))
                for one in answer["grants"]
            ),
        )

    def may(self, action: Action, pattern: str = "*") -> bool:
        """Return whether the user may do something on all that a pattern covers.

        This decides what a page offers. The broker checks each request again.
        """
        wanted = Pattern.parse(pattern)
        return self.role is None or any(one.allows(action, wanted) for one in self._grants)

    def may_somewhere(self, action: Action) -> bool:
        """Return whether the user may do something on at least one topic."""
        return self.role is None or any(one.reaches(action, ALL) for one in self._grants)

    @property
    def sees_payloads(self) -> bool:
        """Whether pages show payloads to the user. Viewers do not see them."""
        return self.standing != "viewer"

    def _standing(self) -> Standing:
        if self.may("admin"):
            return "admin"
        return "operator" if any(self.may_somewhere(one) for one in _CHANGING) else "viewer"
