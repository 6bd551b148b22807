"""The acknowledgements in the database of an application: reading, marking and deleting rows.

One object has one connection to that database, in READ COMMITTED. All calls block, and come from
one thread at a time. After any error the caller closes the connection, and ``attach`` begins again.

A row is *learned* when the log has its acknowledgement. ``unlearned`` looks for all rows without
that mark, in the order of their keys. It does not look for rows behind the last one that was
learned, so it finds a row that is committed after later rows were learned. It is a consistent read,
which sees only committed rows and takes no locks.

``learned`` and ``purge`` change only rows that they could lock by the primary key without a wait.
So they never wait for a consumer. A consumer that inserts a row with the same key waits only for
one short transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from escapement.errors import StorageUnavailable
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.engine.value_lists import in_list, padded
from escapement.storage.outbox.ack_table import ACKS, KEEP_DAYS, AckKey

# The most rows of one step.
MAX_ROWS: Final = 4_096

_LOOK: Final = (
    f"SELECT message, CAST(topic AS CHAR) FROM {ACKS}"
    " FORCE INDEX (log_learned_at) WHERE log = ? AND learned_at IS NULL AND message > ?"
    f" ORDER BY message LIMIT {MAX_ROWS}"
)
_LOOK_OLD: Final = (
    f"SELECT message FROM {ACKS} FORCE INDEX (log_learned_at) WHERE log = ?"
    f" AND learned_at < UTC_TIMESTAMP(3) - INTERVAL {KEEP_DAYS} DAY"
    f" ORDER BY learned_at LIMIT {MAX_ROWS}"
)
# Without the hint, the server may scan the table for a long list of keys, and wait for locked rows.
_BY_KEY: Final = f"{ACKS} FORCE INDEX (PRIMARY)"
_LOCK: Final = f"SELECT message FROM {_BY_KEY} WHERE message {{keys}} FOR UPDATE SKIP LOCKED"
_MARK: Final = f"UPDATE {_BY_KEY} SET learned_at = UTC_TIMESTAMP(3) WHERE message {{keys}}"
_DELETE: Final = f"DELETE {ACKS} FROM {_BY_KEY} WHERE message {{keys}}"


class AckRow(NamedTuple):
    """A row: its key, and the name of its topic."""

    key: AckKey
    topic: str


class AcksInApplication:
    """The acknowledgements of one log in the database of an application.

    Args:
      engine: the database of the application.
      log: the id of the log. Rows of other logs are left alone.
    """

    def __init__(self, engine: Engine, log: bytes) -> None:
        self._engine = engine
        self._log = log
        self._connection: Connection | None = None

    @property
    def location(self) -> str:
        return self._engine.location

    def close(self) -> None:
        """Close the connection, if it is open. The open transaction is rolled back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def attach(self) -> None:
        """Connect.

        Raises:
          StorageUnavailable: if the table does not exist.
        """
        self.close()
        self._connection = connection = self._engine.connect()
        tables = connection.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE()"
            f" AND table_name = '{ACKS}'"
        ).rows[0][0]
        if not tables:
            raise StorageUnavailable(
                f"{self.location}: the table {ACKS} is not there; create it with "
                "`escapement sql install`, which leaves existing tables as they are"
            )

    def unlearned(self, after: bytes = b"") -> list[AckRow]:
        """Return committed rows that are not learned yet, the first ``MAX_ROWS`` behind a key."""
        rows = self._open.execute(_LOOK, (self._log, after)).rows
        return [AckRow(AckKey.unpack(bytes(key)), _text(topic)) for key, topic in rows]

    def learned(self, rows: Sequence[AckRow]) -> int:
        """Mark rows as learned, and return how many. Rows that others have locked are skipped."""
        return self._change(_MARK, [row.key.pack() for row in rows])

    def purge(self) -> bool:
        """Delete rows that were learned long ago. Return whether there may be more of them."""
        old = [bytes(row[0]) for row in self._open.execute(_LOOK_OLD, (self._log,)).rows]
        return self._change(_DELETE, old) == MAX_ROWS

    def _change(self, sql: str, keys: Sequence[bytes]) -> int:
        """Run ``sql`` for the rows with these keys that no other session has locked."""
        if not keys:
            return 0
        connection = self._open
        connection.begin()
        locked = [
            bytes(row[0])
            for some in padded(keys)
            for row in connection.execute(_LOCK.format(keys=in_list(some)), some).rows
        ]
        for some in padded(locked):
            connection.execute(sql.format(keys=in_list(some)), some)
        connection.commit()
        return len(locked)

    @property
    def _open(self) -> Connection:
        if self._connection is None:
            raise StorageUnavailable(f"{self.location}: the connection is closed")
        return self._connection


def _text(value: str | bytes | memoryview) -> str:
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
