"""The checks of tokens, grants and the audit log find each broken promise."""

from __future__ import annotations

import json
from typing import Any

from histories.history import (
    NEVER_MS,
)
from simulation.checks.auditing import DONE, Action, AuditCheck
from simulation.checks.guarding import Granted, GuardCheck, Request, TokenLife

# -- tokens, grants and the audit log -------------------------------------------------------


def guarded() -> tuple[GuardCheck, Request]:
    """Return a check of a token, created at 1,000, with a grant to produce of 2,000.

    The request is one to publish at 3,000.
    """
    token = TokenLife("text", "id", "r", called_ms=900, created_ms=1_000)
    grants = [Granted(from_ms=0), Granted(called_ms=1_900, from_ms=2_000, actions=PRODUCE)]
    check = GuardCheck(10, {("r", "t/n/*"): grants}, [token])
    return check, Request(token, 3_000, "produce", "t/n/a")


PRODUCE = frozenset({"produce"})


def test_client_that_is_refused_although_it_has_a_token_and_a_right_is_found() -> None:
    """O1."""
    check, request = guarded()
    check.denied(request._replace(called_ms=1_950), 3_000)  # the grant was being added
    check.denied(request._replace(action="peek"), 3_100)
    check.denied(request._replace(topic="t/other/a"), 3_100)
    check.unauthenticated(request._replace(called_ms=950), 3_100)  # the token was being created
    assert check.found == []
    check.denied(request, 3_100)
    check.unauthenticated(request, 3_100)
    assert len(check.found) == 2


def test_client_that_is_served_without_a_right_is_found() -> None:
    """O1: a broker may know a removal later."""
    check, request = guarded()
    (grants,) = check.grants.values()
    grants.append(Granted(called_ms=4_000, from_ms=4_100))
    request = request._replace(called_ms=6_000)
    check.served(request, 4_050, 6_100)
    assert check.found == []
    check.served(request, 4_200, 6_100)
    check.served(request._replace(action="peek"), 4_050, 6_100)
    assert len(check.found) == 2


def test_client_that_is_served_with_an_invalid_token_is_found() -> None:
    """O1: revoked, expired, or not created yet."""
    check, request = guarded()
    token = request.token
    token.revoking_ms, token.revoked_ms = 4_000, 4_100
    check.served(request._replace(called_ms=6_000), 4_050, 6_100)
    check.unauthenticated(request._replace(called_ms=6_000), 6_100)
    assert check.found == []
    check.served(request._replace(called_ms=6_000), 4_200, 6_100)
    check.served(request._replace(called_ms=800), 700, 850)
    token.revoking_ms = token.revoked_ms = NEVER_MS
    token.expires_ms = 5_000
    check.served(request._replace(called_ms=8_000), 4_050, 8_100)
    assert len(check.found) == 3


def test_broker_that_names_or_lists_other_rights_is_found() -> None:
    """O1: after changes with an answer."""
    check, request = guarded()
    check.told(request, {"t/n/*": PRODUCE}, 2_500, 3_100)
    check.listed({"id": "valid"}, {("r", "t/n/*"): PRODUCE}, 3_000, 3_100)
    assert check.found == []
    check.told(request, {}, 2_500, 3_100)
    check.listed({}, {}, 3_000, 3_100)
    request.token.revoking_ms, request.token.revoked_ms = 4_000, 4_100
    check.listed({"id": "valid"}, {("r", "t/n/*"): PRODUCE}, 5_000, 5_100)
    assert len(check.found) == 4


def recorded(**changes: Any) -> list[str]:
    """Return the findings about the row of a confirmed request, which has some changes."""
    check = AuditCheck(10)
    action = Action("why", "root", "tokens.create", "r", {"role": "r"}, 1_000, 1_100, DONE, True)
    check.begin(action)
    row = {
        "reason": "why",
        "role": "root",
        "verb": "tokens.create",
        "object": "r",
        "arguments": json.dumps({"role": "r", "digest": "***"}),
        "at_ms": 1_050,
        "outcome": DONE,
        "bundle": 0,
    }
    copies = changes.pop("copies", 1)
    check.listed([row | changes] * copies, 2_000)
    return check.found


def test_row_of_the_audit_log_that_is_missing_doubled_or_wrong_is_found() -> None:
    """B17."""
    assert recorded() == []
    assert recorded(outcome=None) == []
    assert len(recorded(copies=0)) == 1
    assert len(recorded(copies=2)) == 1
    assert len(recorded(outcome="not_found")) == 1
    assert len(recorded(reason="another")) == 2  # and the row of the request is missing
    for wrong in ({"role": "r"}, {"object": "s"}, {"verb": "tokens.revoke"}, {"at_ms": 2_000}):
        assert len(recorded(**wrong)) == 1
    assert len(recorded(arguments=json.dumps({"role": "r", "digest": "secret"}))) == 1
