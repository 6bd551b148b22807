"""Whether a MySQL or MariaDB server has enough connections for the bundles of a database.

One node may own all bundles, for example when the others have failed. So the connections of one
node that owns all of them are compared with the limits of the server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from escapement.event_log import EventLog
from escapement.storage.engine.base import Connection, Engine

_log = EventLog(__name__)

# A commit lane, and two more while the bundle starts: of the recovery, and of the fill of the
# index.
PER_BUNDLE: Final = 3
# Two for shared transactions, or for the second lane of a single bundle; one for each thread that
# the bundles of a node share (broker/runners.py), and some for the rest.
PER_NODE: Final = 22
# For commands, operators, and connections of a dead node that the server has not noticed yet.
RESERVE: Final = 10


class Shortage(NamedTuple):
    """A limit of the server that is too low."""

    problem: str
    remedy: str

    @property
    def text(self) -> str:
        return f"{self.problem} {self.remedy}"


def needed(bundle_count: int) -> int:
    """Return the connections that one node with all bundles may need, with the reserve."""
    return PER_BUNDLE * bundle_count + PER_NODE + RESERVE


def shortage(connection: Connection, bundle_count: int) -> Shortage | None:
    """Return the limit that is too low for the bundles, or None if the server has enough."""
    ((most, most_of_user),) = connection.execute(
        "SELECT @@global.max_connections, @@max_user_connections"
    ).rows
    wanted = needed(bundle_count)
    for name, limit in (("max_connections", most), ("max_user_connections", most_of_user)):
        if 0 < int(limit) < wanted:  # 0 is no limit
            return Shortage(
                f"{name} is {limit}, and one node that owns all {bundle_count} bundles may need"
                f" {wanted} connections. A start or a take-over may fail.",
                f"Set {name} to {wanted} or more.",
            )
    return None


def warn_of_shortage(engine: Engine, connection: Connection, bundle_count: int) -> str | None:
    """Log a warning if the server has too few connections for the bundles. Return its text."""
    found = None if engine.kind == "sqlite" else shortage(connection, bundle_count)
    if found is None:
        return None
    _log.warning("database.few_connections", "%s: %s", engine.location, found.text)
    return found.text
