"""`escapement doctor`: check what a broker depends on, before it starts or while it runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from escapement.broker.config import DEFAULT_PARALLELISM
from escapement.broker.limits import DEFAULT_LIMITS
from escapement.cli.input.configuration import ConfiguredCommand, config_warnings, settings_of
from escapement.cli.input.options import output_option
from escapement.cli.operation.serve import serve
from escapement.cli.output.findings import print_findings
from escapement.doctor.data_directory import judge, look_at
from escapement.doctor.database import check_database
from escapement.doctor.finding import Finding, Severity, error, ok
from escapement.doctor.machine import check_machine
from escapement.doctor.rights import Purpose
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.sqlite import OLDEST_SQLITE
from escapement.storage.log.table_sets import Plan


def _doctor(
    output: str,
    data: Path,
    log_url: str | None,
    outbox_urls: tuple[str, ...],
    table_urls: tuple[str, ...],
    binary_logs: bool,
    table_parallelism: int | None,
    bundles: int | None,
    **_: Any,
) -> None:
    """Check the machine, the data directory and the databases of a broker.

    Give the same options as to `serve`. Each finding says what to do. Nothing is changed, and the
    broker may run meanwhile. The exit code is 1 if there is a warning or an error.
    """
    ctx = click.get_current_context()
    findings = [Finding("configuration", Severity.WARNING, one) for one in config_warnings(ctx)]
    findings += check_machine(DEFAULT_LIMITS.connections)
    findings += _check_data(data, log_url)
    databases: list[tuple[Purpose, str]] = [("log", log_url)] if log_url is not None else []
    databases += [("outbox", url) for url in dict.fromkeys(outbox_urls)]
    databases += [("tables", url) for url in dict.fromkeys(table_urls)]
    plan = Plan(table_parallelism or DEFAULT_PARALLELISM, bundle_count=bundles or 1)
    for purpose, url in databases:
        address = MysqlAddress.parse(url)
        findings += check_database(address, purpose, plan, binlog=binary_logs)
    ctx.exit(print_findings(findings, output))


def _check_data(data: Path, log_url: str | None) -> Iterator[Finding]:
    try:
        yield from judge(look_at(data), holds_log=log_url is None)
    except OSError as failure:
        yield error("permissions", f"cannot look at {data}: {failure.strerror}", "Check --data.")
    if log_url is None:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            text = f"SQLite {sqlite3.sqlite_version} is older than {wanted}"
            yield error("log", text, "Install a newer Python or SQLite.")
        else:
            yield ok("log", f"the log is in SQLite, in {data}")


doctor = output_option("table", "Form of the output.")(
    ConfiguredCommand(
        "doctor",
        params=[*settings_of(serve)],
        callback=_doctor,
        help=_doctor.__doc__,
        epilog="""\b
        Examples:
          escapement doctor
          escapement doctor --config /etc/escapement/escapement.toml -o json
        """,
    )
)
