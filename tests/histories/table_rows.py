"""Rows of a message table, as the application and its consumers know them.

A row is named by a number that the application gave it. Its *version* is its ``epoch``, which
counts deliveries, and its ``time_next``. A broker delivers a row only if it replaces the version
that it knows, and a consumer gets the replaced one. So no two deliveries of a row have the same
version. A delivery that was given back unread is not counted, so the next one may have its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

# The columns ``epoch`` and ``time_next``.
Version = tuple[int, int]


@dataclass(slots=True)
class TableRow:
    """One row."""

    due_ms: int  # when it may be sent
    stored: bool | None = None  # whether its transaction is committed; None: not known
    deliveries: list[tuple[Version, int]] = field(default_factory=list)  # with their times
    acked_epoch: int | None = None  # in the table after a confirmed acknowledgement


@dataclass
class TableRows:
    """All rows of a table, and what became of them.

    ``final`` has the epoch of each row in the table, and whether it is acknowledged, as of the last
    look of the application.
    """

    rows: list[TableRow] = field(default_factory=list)
    final: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def insert(self, due_ms: int) -> int:
        """Note that a row is about to be inserted, and return its number."""
        self.rows.append(TableRow(due_ms))
        return len(self.rows) - 1

    def came(self, values: Mapping[str, Any], at_ms: int) -> int:
        """Note a delivery of a row with these values, and return the number of the row."""
        number: int = values["tenant_id"]
        self.rows[number].deliveries.append(((values["epoch"], values["time_next"]), at_ms))
        return number

    def acked(self, number: int, epoch: int) -> None:
        """Note the epoch of a row after a confirmed acknowledgement."""
        self.rows[number].acked_epoch = epoch
        self.final[number] = epoch, True  # newer than the last look

    def unfinished(self) -> Iterator[str]:
        """Yield a line for each row that must still come, or be acknowledged."""
        for number, row in enumerate(self.rows):
            if row.stored and number not in self.final:
                yield f"lost (1): row {number} was committed and is not in the table"
        for number, (_, is_acked) in self.final.items():
            times = len(self.rows[number].deliveries)
            if not is_acked or not times:
                yield f"lost (4): row {number} came {times} times, acknowledged: {is_acked}"

    def violations(self) -> Iterator[str]:
        """Yield a line for each delivery that must not have been."""
        for number, row in enumerate(self.rows):
            if row.stored is False and row.deliveries:
                yield f"mixed (1): row {number} came although it was rolled back"
            versions = [version for version, _ in row.deliveries]
            if len(set(versions)) < len(versions):
                yield f"twice (5): row {number} came twice with the same version: {versions}"
            early_ms = max((row.due_ms - at_ms for _, at_ms in row.deliveries), default=0)
            if early_ms > 0:
                yield f"early (2): row {number} came {early_ms} ms early"
            now = self.final.get(number)
            if now is not None and row.acked_epoch is not None and row.acked_epoch != now[0]:
                yield (
                    f"again (3): row {number} had epoch {row.acked_epoch} when its ack was durable,"
                    f" and has epoch {now[0]} now"
                )
