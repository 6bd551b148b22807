"""The findings of a broker about its surroundings: who gets them, and how old they are."""

from __future__ import annotations

import threading

import trio
import trio.testing

from escapement import testing
from escapement.broker.config import BrokerConfig
from escapement.broker.findings import Findings
from escapement.broker.runners import Runners
from escapement.clock import SystemClock
from escapement.doctor.finding import Finding, ok, warning
from support.database.outages import Outage


async def test_findings_are_a_minute_old_at_most(mock_clock: trio.testing.MockClock) -> None:
    """B14: several requests at the same time make the checks once, also during an outage."""
    made: list[int] = []

    def check() -> list[Finding]:
        made.append(len(made))
        if len(made) == 3:
            raise ValueError("a bug")
        return [ok("versions", "fine"), warning("disk space", f"full {len(made)}", "Free some.")]

    outage = Outage()
    async with (
        testing.start(engine=outage.engine, config=BrokerConfig(checks=check)) as world,
        world.connect() as broker,
    ):
        began_at_ms = world.clock.now_ms()
        outage.unreachable()
        answers: list[dict[str, object]] = []

        async def ask() -> None:
            answers.append(await broker.admin("broker.findings"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert len(made) == 1
        await world.clock.advance(seconds=59)
        await ask()
        first = {
            "node": "testing", "id": world.server.identity.owner_id, "checked_at_ms": began_at_ms,
            "findings": [
                {"check": "disk space", "level": "warning", "text": "full 1",
                 "remedy": "Free some."},
            ],
        }  # fmt: skip
        assert answers == [first] * 4
        await world.clock.advance(seconds=1)
        await ask()
        assert answers[-1]["checked_at_ms"] == began_at_ms + 60_000
        assert len(made) == 2
        await world.clock.advance(minutes=1)
        await ask()
        (bug,) = (await broker.admin("broker.findings"))["findings"]
        assert "a bug" in bug["text"]


async def test_stop_does_not_wait_for_a_check_that_hangs() -> None:
    """B14: a database that does not answer holds a check for half a minute."""
    begun, answers = trio.Event(), threading.Event()

    def hang() -> list[Finding]:
        trio.from_thread.run_sync(begun.set)
        assert answers.wait(60)
        return []

    findings = Findings(hang, SystemClock(), Runners.in_threads(1).checks)
    try:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(findings.read)
                await begun.wait()
                nursery.cancel_scope.cancel()
    finally:
        answers.set()
