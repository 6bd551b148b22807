"""The problems of a database with message tables, and the pauses of its deliveries.

A *problem* says why messages wait. It lasts from an error until the same kind of work succeeds, or
until nothing waits for it any more. A *pause* stops deliveries for a moment after an error of the
whole database. If the next attempt fails too, the moment is twice as long. ``now_s`` is a time of
the event loop's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeVar

from escapement.errors import StorageError, StorageUnavailable
from escapement.event_log import EventLog
from escapement.identifier import quoted
from escapement.storage.engine.mysql.errors import lacks_right, waits_for_lock

T = TypeVar("T")

_log = EventLog(__name__)

_FIRST_PAUSE_S: Final = 0.25
_LAST_PAUSE_S: Final = 2.0

# The most things that are tried together after an error that concerns some of them.
_PART: Final = 32

# While messages wait to be claimed, claims are tried more often than this, even if each one fails
# only after the longest wait for a connection.
_CLAIMS_S: Final = 15.0

# A problem of a table that ends and begins again is logged at most once in this time.
_LOGGED_S: Final = 60.0

# The kinds of work that may fail. "row" is the sending of single rows.
Work = Literal["look", "poll", "claim", "write", "row"]


class Problems:
    """Why messages of the tables of one database wait.

    A problem concerns one table, or the whole database, which is the table ``""``. It is logged
    once. Of the problems of one table with one kind of work, one is logged in a minute. If the last
    of them lasts, it is logged after that minute.

    Args:
      clock_s: returns the time of the event loop.
    """

    def __init__(self, database: str, clock_s: Callable[[], float]) -> None:
        self._database = database
        self._clock_s = clock_s
        self._by_table: dict[str, dict[Work, StorageError]] = {}
        self._unlogged: set[tuple[str, Work]] = set()  # problems that are to be logged later
        self._logged_s: dict[tuple[str, Work], float] = {}  # when each was logged, if not long ago
        self._last_claim_s: dict[str, float] = {}  # when a claim failed the last time, by table

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
        error = self._explained(error, table)
        was_outage = self.is_outage
        errors = self._by_table.setdefault(table, {})
        is_new = work not in errors or (table, work) in self._unlogged
        errors[work] = error
        if work == "claim":
            self._last_claim_s[table] = self._clock_s()
        if is_new and not was_outage and self._may_log(table, work):
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

    def _may_log(self, table: str, work: Work) -> bool:
        """Return whether to log a problem now. If not, it is to be logged later."""
        if not table:
            return True
        since_s = self._clock_s() - _LOGGED_S
        self._logged_s = {one: at_s for one, at_s in self._logged_s.items() if at_s > since_s}
        if (table, work) in self._logged_s:
            self._unlogged.add((table, work))
            return False
        self._unlogged.discard((table, work))
        self._logged_s[table, work] = self._clock_s()
        return True

    def _explained(self, error: StorageError, table: str) -> StorageError:
        """Return an error with advice, if there is any."""
        if lacks_right(error):
            where = f"{quoted(self._database)}.{quoted(table) if table else '*'}"
            return StorageError(
                f"{error}. The broker's user lacks a right. GRANT SELECT, UPDATE, DELETE ON"
                f" {where} TO this user."
            )
        if waits_for_lock(error):
            return StorageError(
                f"{error}. Another session locks the table, such as LOCK TABLES or an ALTER TABLE"
                " that waits for an open transaction. End that session or transaction."
            )
        return error

    def end(self, work: Work, table: str = "") -> None:
        """Note that work has succeeded."""
        self._unlogged.discard((table, work))
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
            self.end("row", table)

    def forget_claims(self) -> None:
        """Forget problems of claims that have not failed again: nothing is to be claimed."""
        since_s = self._clock_s() - _CLAIMS_S
        for table in [one for one, last_s in self._last_claim_s.items() if last_s <= since_s]:
            del self._last_claim_s[table]
            self.end("claim", table)

    def of(self, table: str) -> StorageError | None:
        """Return why messages of a table wait: first the reason that concerns all tables."""
        errors = [*self._by_table.get("", {}).values(), *self._by_table.get(table, {}).values()]
        return errors[0] if errors else None

    @property
    def tables(self) -> list[str]:
        """The tables that have a problem."""
        return sorted(self._by_table.keys() - {""})


def divided(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """Divide things that cannot be used together, in order to find the one that cannot be used.

    A part has at most ``_PART`` things. No more than these are divided into single ones. So few
    parts fail, each of which may wait for a lock, and few statements are needed.
    """
    size = _PART if len(things) > _PART else 1
    for start in range(0, len(things), size):
        yield things[start : start + size]


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
