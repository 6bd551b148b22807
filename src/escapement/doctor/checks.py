"""All checks of the surroundings of a broker, for `escapement doctor` and for a running broker."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from escapement.doctor.data_directory import judge, look_at
from escapement.doctor.database import check_database
from escapement.doctor.finding import Finding, Severity, error, ok
from escapement.doctor.machine import check_machine
from escapement.doctor.rights import Purpose
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.sqlite import OLDEST_SQLITE
from escapement.storage.log.table_sets import Plan


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of the machine, the data directory and the databases of one broker.

    Attributes:
      log: the database of the log; None if the log is in SQLite, in the data directory.
      outboxes, tables: the databases of applications.
      binary_logs: whether the broker reads the binary logs of their servers.
      plan: the bundles and tables that the broker is to have.
      connections: how many connections the broker accepts.
      configuration: what is wrong with the configuration file.
    """

    data: Path
    log: MysqlAddress | None
    outboxes: Iterable[MysqlAddress]
    tables: Iterable[MysqlAddress]
    binary_logs: bool
    plan: Plan
    connections: int
    configuration: Iterable[str] = ()

    def make(self) -> list[Finding]:
        """Make all checks. Nothing is changed. Blocking, for as long as the databases need."""
        findings = [Finding("configuration", Severity.WARNING, one) for one in self.configuration]
        findings += check_machine(self.connections)
        findings += self._check_data()
        databases: list[tuple[Purpose, MysqlAddress]] = []
        if self.log is not None:
            databases.append(("log", self.log))
        databases += [("outbox", address) for address in self.outboxes]
        databases += [("tables", address) for address in self.tables]
        for purpose, address in databases:
            findings += check_database(address, purpose, self.plan, binlog=self.binary_logs)
        return findings

    def _check_data(self) -> Iterator[Finding]:
        try:
            yield from judge(look_at(self.data), holds_log=self.log is None)
        except OSError as failure:
            text = f"cannot look at {self.data}: {failure.strerror}"
            yield error("permissions", text, "Check --data.")
        if self.log is None:
            wanted = ".".join(map(str, OLDEST_SQLITE))
            if sqlite3.sqlite_version_info < OLDEST_SQLITE:
                text = f"SQLite {sqlite3.sqlite_version} is older than {wanted}"
                yield error("log", text, "Install a newer Python or SQLite.")
            else:
                yield ok("log", f"the log is in SQLite, in {self.data}")
