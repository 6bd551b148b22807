"""The problems of a database with message tables, and the pauses of its deliveries.

A *problem* says why messages wait. It lasts from an error until the same kind of work succeeds. A
*pause* stops deliveries for a moment after an error of the whole database. If the next attempt
fails too, the moment is twice as long. ``now_s`` is a time of the event loop's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, Literal

from escapement.errors import StorageError, StorageUnavailable
from escapement.event_log import EventLog
from escapement.storage.engine.mysql_errors import lacks_right
from escapement.tables.identifier import quoted

_log = EventLog(__name__)

_FIRST_PAUSE_S: Final = 0.25
_LAST_PAUSE_S: Final = 2.0

# The kinds of work that may fail.
Work = Literal["look", "poll", "claim", "write"]


class Problems:
    """Why messages of the tables of one database wait.

    A problem concerns one table, or the whole database, which is the table ``""``. It is logged
    once.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._by_table: dict[str, dict[Work, StorageError]] = {}

    @property
    def is_outage(self) -> bool:
        """Whether an error concerns the whole database."""
        return "" in self._by_table or any(
            isinstance(error, StorageUnavailable)
            for errors in self._by_table.values()
            for error in errors.values()
        )

    @contextmanager
    def trying(self, work: Work, table: str = "") -> Iterator[None]:
        """Note whether work in the ``with`` block succeeds."""
        try:
            yield
        except StorageError as error:
            self.note(work, error, table)
            raise
        self.end(work, table)

    def note(self, work: Work, error: StorageError, table: str = "") -> None:
        """Note an error."""
        if lacks_right(error):
            error = StorageError(
                f"{error}. The broker's user lacks a right. GRANT SELECT, UPDATE, DELETE ON"
                f" {quoted(self._database)}.* TO this user."
            )
        was_outage = self.is_outage
        errors = self._by_table.setdefault(table, {})
        is_new = work not in errors
        errors[work] = error
        if is_new and not was_outage:
            whose = f" of table {table}" if table else " of tables"
            _log.warning(
                "tables.waiting",
                "messages%s wait: %s",
                whose,
                error,
                database=self._database,
                table=table or None,
                work=work,
            )

    def end(self, work: Work, table: str = "") -> None:
        """Note that work has succeeded."""
        errors = self._by_table.get(table)
        if errors is not None and errors.pop(work, None) is not None and not errors:
            del self._by_table[table]

    def end_all(self, work: Work, but: Collection[str]) -> None:
        """Note that work has succeeded for the database, and for all tables except some."""
        for table in self._by_table.keys() - set(but):
            self.end(work, table)

    def unused(self, tables: Collection[str]) -> None:
        """Note that tables are not used, so nothing of them is polled or claimed."""
        for table in self._by_table.keys() & set(tables):
            self.end("poll", table)
            self.end("claim", table)

    def of(self, table: str) -> StorageError | None:
        """Return why messages of a table wait: first the reason that concerns all tables."""
        errors = [*self._by_table.get("", {}).values(), *self._by_table.get(table, {}).values()]
        return errors[0] if errors else None

    @property
    def tables(self) -> list[str]:
        """The tables that have a problem."""
        return sorted(self._by_table.keys() - {""})


class Pause:
    """The pause of deliveries after an error of the whole database."""

    def __init__(self) -> None:
        self.cause: StorageError | None = None  # None if there is no pause
        self.ends_s = 0.0  # when to try again, if there is a pause
        self._length_s = 0.0

    def begin(self, error: StorageError, now_s: float) -> None:
        """Begin a pause, twice as long as the last one if the database has not worked since."""
        self._length_s = min(max(2 * self._length_s, _FIRST_PAUSE_S), _LAST_PAUSE_S)
        self.ends_s = now_s + self._length_s
        self.cause = error

    def has_passed(self, now_s: float) -> bool:
        """End the pause if it is over. Return whether deliveries are to be tried again."""
        if self.cause is None or now_s < self.ends_s:
            return False
        self.cause = None
        return True

    def end(self) -> bool:
        """Note that the database works. Return whether there was a pause."""
        was = self.cause is not None
        self.cause, self._length_s = None, 0.0
        return was
