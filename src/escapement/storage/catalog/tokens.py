"""The stored tokens of clients.

Owns the table ``tokens``. The broker reads it once, when it starts, and keeps it in memory. Each
function that writes runs inside a transaction of the caller (``CommitPipeline.transact``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Literal

from escapement.errors import StorageError, StorageUnavailable
from escapement.storage.bundles import catalog_changed
from escapement.storage.engine.base import Connection, Engine

TokenState = Literal["valid", "revoked", "expired"]

_COLUMNS = "id, role, digest, created_at_ms, expires_at_ms, revoked_at_ms, used_at_ms"


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as it is stored: its role and the SHA-256 of its text."""

    id: str
    role: str
    digest: bytes = field(repr=False)
    created_at_ms: int
    expires_at_ms: int | None = None
    revoked_at_ms: int | None = None
    used_at_ms: int | None = None

    def is_valid(self, now_ms: int) -> bool:
        """Return whether the token is neither revoked nor expired."""
        expired = self.expires_at_ms is not None and self.expires_at_ms <= now_ms
        return self.revoked_at_ms is None and not expired

    def state(self, now_ms: int) -> TokenState:
        """Return whether the token is valid, or why not."""
        if self.revoked_at_ms is not None:
            return "revoked"
        return "valid" if self.is_valid(now_ms) else "expired"


def read_tokens(connection: Connection) -> list[TokenRecord]:
    """Return all tokens. Their number is bounded (``broker/access/access.py``)."""
    rows = connection.execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY created_at_ms, id").rows
    return [TokenRecord(id, role, bytes(digest), *times) for id, role, digest, *times in rows]


def insert_token(connection: Connection, token: TokenRecord, dead_ids: Sequence[str]) -> None:
    """Store a new token, and delete those of ``dead_ids``."""
    connection.execute(
        f"INSERT INTO tokens ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            token.id,
            token.role,
            token.digest,
            token.created_at_ms,
            token.expires_at_ms,
            token.revoked_at_ms,
            token.used_at_ms,
        ),
    )
    if dead_ids:
        connection.execute_many("DELETE FROM tokens WHERE id = ?", [(id,) for id in dead_ids])
    catalog_changed(connection)


def revoke_token(connection: Connection, id: str, now_ms: int) -> None:
    """Store that a token is revoked."""
    connection.execute("UPDATE tokens SET revoked_at_ms = ? WHERE id = ?", (now_ms, id))
    catalog_changed(connection)


def note_uses(connection: Connection, uses: Iterable[tuple[str, int]]) -> None:
    """Store when tokens were last used: pairs of an id and a time."""
    connection.execute_many(
        "UPDATE tokens SET used_at_ms = ? WHERE id = ?", [(at_ms, id) for id, at_ms in uses]
    )


def has_tokens(engine: Engine) -> bool:
    """Return whether a log has tokens, before a broker starts on it. Blocking.

    Raises:
      StorageUnavailable: if the database cannot be reached.
    """
    with closing(engine.connect()) as connection:
        try:
            return bool(connection.execute("SELECT 1 FROM tokens LIMIT 1").rows)
        except StorageUnavailable:
            raise
        except StorageError:
            return False  # the table does not exist yet
