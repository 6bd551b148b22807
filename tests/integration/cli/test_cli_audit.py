"""`escapement admin audit`, and the reason of a command, against a broker in a process."""

from __future__ import annotations

import json
import re

from escapement.clock import moment
from support.processes.command_lines import Say


def test_reason_of_a_command_is_in_the_audit_log(say: Say) -> None:
    """B17: with the address of the command line, in a table and as JSON."""
    say("--reason", "ticket 4711", "admin", "topics", "create", "audit/cli/t")
    say("admin", "topics", "update", "audit/cli/t", "--ttl", "1h")
    say("admin", "topics", "delete", "audit/cli/none", fails=1)
    about = ("audit", "list", "--object", "audit/cli/*", "--since", "1h")
    failed, updated, created = json.loads(say("admin", "-o", "json", *about))
    assert (failed["verb"], failed["outcome"]) == ("topics.delete", "not_found")
    assert updated["arguments"]["policy"] == {"ttl_ms": 3_600_000}
    assert (created["reason"], updated["reason"]) == ("ticket 4711", None)
    assert re.fullmatch(r"127\.0\.0\.1:\d+", created["peer"])
    assert created["client"] == "cli"
    listed = say("admin", *about, "--verb", "topics.create", "--count", "1")
    assert "ticket 4711" in listed
    assert len(listed.splitlines()) == 2
    assert say("admin", *about, "--until", created_before(created["at_ms"])).strip() == "no actions"
    assert "at most 500 characters" in say(
        "--reason", "x" * 501, "admin", "topics", "list", fails=1
    )


def created_before(at_ms: int) -> str:
    """Return a time before ``at_ms``, as options have it."""
    return moment(at_ms - 1000).isoformat()
