"""The administrative operation (*verb*) on problems of the surroundings of a broker."""

from __future__ import annotations

from typing import Final, Literal, TypedDict

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import Verb
from escapement.broker.broker import Broker


class ListedFinding(TypedDict):
    """A bad finding: the name of the check, and what to do; "" if there is nothing to do."""

    check: str
    level: Literal["warning", "error"]
    text: str
    remedy: str


class NodeFindings(TypedDict):
    """The bad findings of one node about its machine, its data directory and its databases."""

    node: str
    id: str
    checked_at_ms: int
    findings: list[ListedFinding]


async def _findings(broker: Broker, given: Arguments) -> NodeFindings:
    given.end()
    checked = await broker.findings.read()
    return {
        "node": broker.identity.name,
        "id": broker.identity.owner_id,
        "checked_at_ms": checked.at_ms,
        "findings": [
            {
                "check": one.check,
                "level": one.severity.value,  # type: ignore[typeddict-item]
                "text": one.text,
                "remedy": one.remedy,
            }
            for one in checked.findings
        ],
    }


VERBS: Final[dict[str, Verb]] = {"broker.findings": _findings}
