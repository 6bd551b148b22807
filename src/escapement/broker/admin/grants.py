"""The administrative operations (*verbs*) on grants: add, list, remove."""

from __future__ import annotations

from typing import Final, TypedDict

from escapement.access.grant import ACTIONS, Action, Grant, check_role, read_actions
from escapement.access.pattern import ALL, Pattern
from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker


class ListedGrant(TypedDict):
    """The actions that a role may carry out on a pattern; none are left of a removed grant."""

    role: str
    pattern: str
    actions: list[Action]


async def _add_grant(broker: Broker, given: Arguments) -> ListedGrant:
    role, pattern = check_role(given.text("role")), Pattern.parse(given.text("pattern"))
    actions = read_actions(given.texts("actions", len(ACTIONS)))
    given.end()
    return _plain(await broker.services.access.add_grant(role, pattern, actions))


async def _list_grants(broker: Broker, given: Arguments) -> list[ListedGrant]:
    role, text = given.optional_text("role"), given.optional_text("within")
    given.end()
    within = ALL if text is None else Pattern.parse(text)
    seen = given.caller.coverage("admin")
    async with broker.answering:
        return [
            _plain(grant)
            for grant in broker.services.access.rights
            if role in (None, grant.role)
            and within.covers(grant.pattern)
            and grant.pattern.text in seen
        ]


async def _remove_grant(broker: Broker, given: Arguments) -> ListedGrant:
    role, pattern = check_role(given.text("role")), Pattern.parse(given.text("pattern"))
    names = given.optional_texts("actions", len(ACTIONS))
    given.end()
    actions = None if names is None else read_actions(names)
    return _plain(await broker.services.access.remove_grant(role, pattern, actions))


def _plain(grant: Grant) -> ListedGrant:
    return {"role": grant.role, "pattern": grant.pattern.text, "actions": grant.listed}


VERBS: Final[dict[str, Verb]] = {
    "grants.add": _add_grant,
    "grants.list": _list_grants,
    "grants.remove": _remove_grant,
}
