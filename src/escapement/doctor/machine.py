"""Checks of the machine: versions, and the limit of open files."""

from __future__ import annotations

import platform
import resource
import sqlite3
from collections.abc import Iterator
from importlib.metadata import version
from typing import Final

from escapement.doctor.finding import Finding, ok, warning

# Descriptors that a broker needs besides those of its connections: segments of the index, files and
# connections to databases.
OWN_DESCRIPTORS: Final = 512


def check_machine(connections: int) -> Iterator[Finding]:
    """Check this machine for a broker with up to this many connections."""
    yield ok(
        "versions",
        f"escapement {version('escapement')}, Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}, Linux {platform.release()}",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield judge_descriptors(soft, hard, connections)


def judge_descriptors(soft: int, hard: int, connections: int) -> Finding:
    """Judge the limits of open files of this process, which a broker started here has too."""
    needed = connections + OWN_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        shown = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
        return ok("descriptors", f"the limit of open files is {shown}")
    may_raise = hard == resource.RLIM_INFINITY or hard >= needed
    here = f"run ulimit -n {needed} before it" if may_raise else "let root raise the hard limit"
    return warning(
        "descriptors",
        f"the limit of open files is {soft:,}: about {max(soft - OWN_DESCRIPTORS, 0):,} clients can"
        f" connect, although the broker accepts {connections:,}",
        f"Set LimitNOFILE={2 * connections} in the systemd unit of the broker, or {here}.",
    )
