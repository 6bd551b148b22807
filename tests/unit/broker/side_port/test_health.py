"""Readiness is decided from the state of the broker, and explained in words."""

from __future__ import annotations

from dataclasses import replace

from escapement.broker.side_port.health import State, reasons_not_ready, reasons_of
from escapement.broker.side_port.shown import Shown

READY = State(
    stopping=False, lease_left_ms=9_000, database="up", commit_age_ms=10, commit_limit_ms=6_666
)


def test_broker_is_ready_or_says_in_words_why_not() -> None:
    """O4: each reason alone, and all together."""
    assert reasons_of(READY) == []
    unstarted = reasons_not_ready(Shown())
    assert unstarted == ["no broker runs: it waits for the lease or loads the index"]
    cases = [
        ({"stopping": True}, "the broker is stopping"),
        ({"lease_left_ms": 0}, "the lease has expired: another broker may take over the database"),
        ({"database": "read-only"}, "the database is read-only: publishes are refused"),
        ({"commit_age_ms": 7_000}, "no commit has succeeded for 7.0 s"),
    ]
    for change, reason in cases:
        assert reasons_of(replace(READY, **change)) == [reason]  # type: ignore[arg-type]
    whole = {name: value for change, _ in cases for name, value in change.items()}
    assert len(reasons_of(replace(READY, **whole))) == 4  # type: ignore[arg-type]
