"""The check of a stopped or running broker: lease, journal, log tables, index, messages.

With a running broker, the check only reads consistent snapshots and immutable files, and looks at
no file that the broker may be writing. On a stopped broker it looks at all files of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from escapement.check.database import (
    check_journal,
    check_keys,
    check_lease,
    check_owners,
    check_tables,
)
from escapement.check.index_files import check_segments, orphan, orphaned_files
from escapement.check.problem import Problem, of_bundle, problem
from escapement.check.topics import TopicsCheck
from escapement.doctor.finding import Finding, Severity, error, notice
from escapement.errors import StorageError
from escapement.storage import lease
from escapement.storage.bundles import bundle_count
from escapement.storage.data_directory import identity_of
from escapement.storage.engine.base import Connection, Engine
from escapement.storage.schema import require

# At most this many errors that SQLite finds in its file are shown.
_SQLITE_ERRORS: Final = 20


class Check:
    """A check of one broker.

    Args:
      data: the data directory of the broker.
      tell: called with a text about the progress.
      owner_id: the identity of this process if it holds the lease of the broker, else "".

    Attributes:
      findings: the findings, in the order of the checks.
      orphans: the files of the indexes that nothing names.
      spoilt: the bundles whose index is damaged, or contradicts the log.
      ends: for each topic whose log has rows beyond its end in the catalog, the end of its log.
    """

    def __init__(
        self,
        engine: Engine,
        data: Path,
        tell: Callable[[str], None] = lambda text: None,
        owner_id: str = "",
    ) -> None:
        self._engine = engine
        self._data = data
        self._tell = tell
        self._owner_id = owner_id
        self.findings: list[Finding] = []
        self.orphans: list[Path] = []
        self.spoilt: set[int] = set()
        self.ends: dict[int, int] = {}

    def run(self) -> list[Finding]:
        """Check everything, and return the findings; blocking."""
        try:
            with closing(self._engine.connect()) as connection:
                require(connection)
                # One by one, because ``_all`` looks at earlier findings.
                for finding in self._all(connection):
                    self.findings.append(finding)
        except StorageError as failure:
            self.findings.append(
                error(
                    Problem.DATABASE,
                    str(failure),
                    "Start the server, or correct --data and --log. If the database itself is"
                    " damaged, restore it from a backup.",
                )
            )
        return self.findings

    def has(self, problems: Set[str]) -> bool:
        """Return whether one of these problems was found."""
        return any(one.is_bad and one.check in problems for one in self.findings)

    def answer(self, problems: Set[str], severity: Severity, remedy: str) -> None:
        """Change the severity and the remedy of the findings of these problems."""
        for at, one in enumerate(self.findings):
            if one.check in problems and one.severity is not Severity.OK:
                self.findings[at] = replace(one, severity=severity, remedy=remedy)

    def _all(self, connection: Connection) -> Iterator[Finding]:
        self._tell("the lease and the journal")
        bundles = range(bundle_count(connection))
        for bundle_id in bundles:
            found = [
                *check_lease(self._engine, connection, self._owner_id, bundle_id),
                *check_journal(connection, bundle_id),
            ]
            yield from (of_bundle(one, bundle_id, len(bundles)) for one in found)
        epochs = {one: self._idle_epoch(connection, one) for one in bundles}
        if None not in epochs.values() and self._engine.kind == "sqlite":
            self._tell("the file of SQLite")
            yield from _check_sqlite(connection)
        yield from check_tables(self._engine, connection)
        yield from check_keys(connection)
        for bundle_id in bundles:
            found = check_segments(self._data, self._tell, bundle_id)
            if any(one.is_bad for one in found):
                self.spoilt.add(bundle_id)
            yield from (of_bundle(one, bundle_id, len(bundles)) for one in found)
        for bundle_id, epoch in epochs.items():
            orphans = orphaned_files(self._data, bundle_id) if epoch is not None else []
            # Otherwise a broker has started meanwhile.
            if orphans and self._idle_epoch(connection, bundle_id) == epoch:
                self.orphans += orphans
                yield from map(orphan, orphans)
        if self.has({Problem.JOURNAL, Problem.LOG_TABLES, Problem.DATABASE}):
            yield notice("log", "messages were not checked, because of the errors above")
            return
        self._tell("the owners of rows")
        yield from check_owners(connection)
        identity = identity_of(self._data)
        topics = TopicsCheck(self._engine, connection, self._data, self._tell, identity)
        yield from topics.run()
        self.ends = topics.ends
        self.spoilt |= topics.spoilt

    def _idle_epoch(self, connection: Connection, bundle_id: int) -> int | None:
        """Return the epoch of the lease of a bundle if no broker owns it, else None."""
        row = lease.look(self._engine, connection, bundle_id)
        if row is None:
            return 0
        is_ours = bool(self._owner_id) and row.owner_id == self._owner_id
        return row.epoch if is_ours or row.left_ms <= 0 else None


def _check_sqlite(connection: Connection) -> Iterator[Finding]:
    rows = connection.execute(f"PRAGMA quick_check({_SQLITE_ERRORS})").rows
    for (text,) in rows:
        if text != "ok":
            yield problem(Problem.DATABASE, f"SQLite finds damage in its file: {text}")
