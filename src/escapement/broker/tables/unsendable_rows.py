"""The rows of tables that cannot be sent as they are, such as rows that are too large.

They are a problem of their table until they are sent or not tried again: they may have been changed
or acknowledged by SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from escapement.broker.tables.claim import Unsendable
from escapement.broker.tables.trouble import Problems
from escapement.tables.row_ids import RowId

# A row that was not tried again this long after its time is forgotten.
_GRACE_MS: Final = 10_000
# The most rows of one table that are known. The problem of a table names one row.
_MOST_ROWS: Final = 1_000


class UnsendableRows:
    """The rows of the tables of one database that cannot be sent."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._rows: dict[str, dict[RowId, Unsendable]] = {}

    def claimed(
        self, table: str, ids: Sequence[RowId], unsendable: Mapping[RowId, Unsendable]
    ) -> None:
        """Note which of the rows of a claim cannot be sent."""
        rows = self._rows.get(table, {})
        if not rows and not unsendable:
            return
        for id in ids:
            rows.pop(id, None)
        for id, one in list(unsendable.items())[: _MOST_ROWS - len(rows)]:
            rows[id] = one
        self._rows[table] = rows
        self._show(table)

    def forget(self, now_ms: int) -> None:
        """Forget rows that were not tried again, although it was time to."""
        for table, rows in list(self._rows.items()):
            late = [id for id, one in rows.items() if now_ms > one.next_ms + _GRACE_MS]
            if late:
                self.claimed(table, late, {})

    def _show(self, table: str) -> None:
        rows = self._rows[table]
        if rows:
            self._problems.note("row", next(iter(rows.values())).error, table)
        else:
            del self._rows[table]
            self._problems.end("row", table)
