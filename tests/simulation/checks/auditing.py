"""The audit log: each change has one row, which names its role, object and arguments."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from histories.history import NEVER_MS

DONE = "done"


@dataclass(slots=True)
class Action:
    """A request that changes something, with a reason of its own, and its answer.

    ``outcome`` is ``DONE`` or the code of an error; "" if no answer came. ``once``: it was surely
    sent once only.
    """

    reason: str
    role: str
    verb: str
    object: str
    arguments: Mapping[str, Any]
    called_ms: int
    answered_ms: int = NEVER_MS
    outcome: str = ""
    once: bool = False


@dataclass
class AuditCheck:
    """Each confirmed change has one row, with the right content. No other change has a row.

    Args:
      skew_ms: the most that two clocks differ by.
    """

    skew_ms: int
    actions: dict[str, Action] = field(default_factory=dict)  # by reason
    found: list[str] = field(default_factory=list)

    def begin(self, action: Action) -> Action:
        """Note that a request is about to be sent."""
        assert action.reason not in self.actions
        self.actions[action.reason] = action
        return action

    def listed(self, rows: Sequence[Mapping[str, Any]], called_ms: int) -> None:
        """Compare the rows with these reasons with the requests.

        Args:
          rows: all rows of the audit log that have a reason.
          called_ms: when they were asked for.
        """
        by_reason: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in rows:
            by_reason[row["reason"]].append(row)
        self.found = []
        for reason in by_reason.keys() - self.actions.keys():
            self.found.append(f"audit: nobody made the request of {by_reason[reason][0]}")
        for action in self.actions.values():
            some = by_reason.get(action.reason, [])
            for row in some:
                self.found += self._wrong(action, row)
            if action.answered_ms < called_ms and action.outcome:
                self.found += _miscounted(action, some)

    def _wrong(self, action: Action, row: Mapping[str, Any]) -> Iterator[str]:
        """Yield the mistakes in a row of a request."""
        arguments = json.loads(row["arguments"])
        if "digest" in arguments and arguments.pop("digest") != "***":
            yield f"audit: {row} has the digest of a token"
        expected = (action.role, action.verb, action.object, dict(action.arguments))
        if (row["role"], row["verb"], row["object"], arguments) != expected:
            yield f"audit: {row} is the row of {action}"
        is_early = row["at_ms"] < action.called_ms - self.skew_ms
        is_late = row["at_ms"] > action.answered_ms + self.skew_ms
        # A broker may get a request without an answer, or a repeated one, later.
        if is_early or (is_late and action.outcome and action.once):
            yield f"audit: {row} has a time that {action} has not"


def _miscounted(action: Action, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line if a request that was answered has too few rows, or too many.

    A broker that cannot store the outcome leaves it out. It may also fail to delete its row when
    another broker carries the request out, and to store a row of a request that it refused.
    """
    outcomes = [row["outcome"] for row in rows]
    if action.outcome == DONE and not {DONE, None} & {*outcomes}:
        yield f"audit: {action} has no row that says so, but {outcomes}"
    if action.outcome == "access_denied" and action.once and DONE in outcomes:
        yield f"audit: {action} is recorded as done"
    if action.once and max(_counts(rows), default=0) > 1:
        yield f"audit: {action} has {len(rows)} rows"


def _counts(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many rows each bundle has."""
    bundles = [row["bundle"] for row in rows]
    return [bundles.count(one) for one in set(bundles)]
