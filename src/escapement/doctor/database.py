"""Checks of a database on a MySQL or MariaDB server: reachable, durable, on time, with rights."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from escapement.doctor.finding import Finding, error, ok, warning
from escapement.doctor.rights import Purpose, check_rights
from escapement.errors import StorageError
from escapement.storage.bundles import count_after_division
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Connection
from escapement.storage.engine.existing import tables
from escapement.storage.engine.mysql.connection_limit import shortage
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.mysql.fitness import (
    durability_risks,
    problems,
    server_settings,
    why_read_only,
)
from escapement.storage.log.table_sets import Plan

# A larger difference between the clocks shows in delivery times that the database computes.
MOST_SKEW_S: Final = 1.0
# The best of some measurements of the clock counts: the one with the shortest round trip.
_MEASUREMENTS: Final = 5


def check_database(
    address: MysqlAddress, purpose: Purpose, plan: Plan, *, binlog: bool
) -> Iterator[Finding]:
    """Check a database. Nothing is created or changed.

    Args:
      purpose: the option that names the database. A database of an application may also have tables
        without transactions, and that of the log may not.
      plan: the bundles and tables that the broker is to have.
      binlog: whether the broker is to read the binary log of the server.
    """
    check = f"{purpose} {address.database}"
    engine = MysqlEngine(address, creates=False)
    try:
        with contextlib.closing(engine.connect()) as connection:
            yield from _check(check, connection, str(address), purpose == "log")
            yield from check_rights(check, engine, connection, purpose, plan, binlog=binlog)
            if purpose == "log":
                yield from _check_connections(check, engine, connection, plan)
    except StorageError as failure:
        yield error(check, str(failure), "Correct the URL, or start the server. Then try again.")


def _check(check: str, connection: Connection, location: str, holds_log: bool) -> Iterator[Finding]:
    has = server_settings(connection)
    yield ok(check, f"{location} answers: {has['version']}")
    read_only = why_read_only(has)
    if read_only is not None:
        yield error(check, read_only, "The broker cannot start until the server takes writes.")
    if holds_log:
        for problem in problems(has, connection):
            yield error(check, problem, "The broker does not start before this is changed.")
    risks = list(durability_risks(has))
    for risk in risks:
        yield warning(check, risk.problem, risk.remedy)
    if not risks:
        yield ok(check, "the server waits for the disk before it confirms a commit")
    yield judge_skew(check, *_skew(connection))


def _check_connections(
    check: str, engine: MysqlEngine, connection: Connection, plan: Plan
) -> Iterator[Finding]:
    bundle_count = plan.bundle_count
    if "shared_numbers" in tables(engine, connection):
        bundle_count = count_after_division(connection, bundle_count)
    found = shortage(connection, bundle_count)
    if found is not None:
        yield warning(check, found.problem, found.remedy)


def judge_skew(check: str, skew_s: float, uncertainty_s: float) -> Finding:
    """Judge by how much the clock of a server is ahead of ours.

    Args:
      uncertainty_s: half of the round trip. Within it, the skew may be 0.
    """
    if abs(skew_s) - uncertainty_s <= MOST_SKEW_S:
        return ok(check, f"its clock differs by {abs(skew_s):.3f} s")
    direction = "ahead of" if skew_s > 0 else "behind"
    return warning(
        check,
        f"its clock is {abs(skew_s):.1f} s {direction} the clock of this machine: messages whose"
        " times the database computes come too early or too late",
        "Synchronise both clocks, for example with chrony.",
    )


def _skew(connection: Connection) -> tuple[float, float]:
    """Return by how many seconds the server's clock is ahead, and how uncertain this is."""
    found: list[tuple[float, float]] = []
    for _ in range(_MEASUREMENTS):
        before_s = time.time()
        ((text,),) = connection.execute("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)").rows
        after_s = time.time()
        theirs_s = datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()
        found.append(((after_s - before_s) / 2, theirs_s - (before_s + after_s) / 2))
    uncertainty_s, skew_s = min(found)
    return skew_s, uncertainty_s
