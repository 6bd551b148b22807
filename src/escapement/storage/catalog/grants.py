"""The stored grants of roles.

Owns the table ``grants``. The broker reads it once, when it starts, and keeps it in memory. Each
function that writes runs inside a transaction of the caller (``CommitPipeline.transact``).
"""

from __future__ import annotations

from escapement.access.grant import Grant, read_actions
from escapement.access.pattern import Pattern
from escapement.storage.bundles import catalog_changed
from escapement.storage.engine.base import Connection


def read_grants(connection: Connection) -> list[Grant]:
    """Return all grants. Their number is bounded (``broker/access/access.py``)."""
    rows = connection.execute("SELECT role, pattern, actions FROM grants").rows
    return [
        Grant(role, Pattern(bytes(pattern).decode()), read_actions(actions.split(",")))
        for role, pattern, actions in rows
    ]


def put_grant(connection: Connection, grant: Grant) -> None:
    """Store a grant. It replaces the one that the role has for this pattern."""
    connection.execute(
        "REPLACE INTO grants (role, pattern, actions) VALUES (?, ?, ?)",
        (grant.role, grant.pattern.text.encode(), ",".join(grant.listed)),
    )
    catalog_changed(connection)


def remove_grant(connection: Connection, role: str, pattern: Pattern) -> None:
    """Delete the grant of a role for exactly this pattern."""
    connection.execute(
        "DELETE FROM grants WHERE role = ? AND pattern = ?", (role, pattern.text.encode())
    )
    catalog_changed(connection)
