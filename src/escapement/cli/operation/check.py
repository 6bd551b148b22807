"""`escapement check`: check what a broker has stored, and mend what can be derived."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import click

from escapement.check.check import Check
from escapement.check.repair import repair as mend
from escapement.cli.input.configuration import ConfiguredCommand, settings_of
from escapement.cli.input.options import output_option
from escapement.cli.operation.serve import serve
from escapement.cli.output.findings import print_findings
from escapement.cli.output.progress import ProgressLine
from escapement.clock import SystemClock
from escapement.errors import NotFound
from escapement.storage.data_directory import DataDirectory
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.base import Engine
from escapement.storage.engine.mysql.engine import MysqlEngine
from escapement.storage.engine.sqlite import FILE_NAME, SqliteEngine


def _check(output: str, repair: bool, data: Path, log_url: str | None, **_: Any) -> None:
    """Check the log, the cursors and the index of a broker against each other.

    Give the same options as to `serve`. Each finding has a remedy. Without --repair nothing is
    changed, and the broker may run meanwhile.

    With --repair the broker must be stopped. A damaged index is deleted, and the next start
    builds it again from the log. Orphaned files are moved into a folder of the data directory. The
    log is never changed.

    The exit code is 1 if a problem remains or the check fails, and 0 otherwise.
    """
    line = ProgressLine()

    def tell(text: str) -> None:
        if line.wants:
            line.tell(text)

    with closing(_engine(data, log_url)) as engine:
        try:
            if repair:
                if not data.is_dir():
                    raise NotFound(f"The data directory {data} does not exist. Check --data.")
                with DataDirectory.open(data) as directory:
                    findings = mend(engine, directory, SystemClock(), tell)
            else:
                findings = Check(engine, data, tell).run()
        finally:
            line.end()
    click.get_current_context().exit(print_findings(findings, output))


def _engine(data: Path, log_url: str | None) -> Engine:
    """Return the engine of an existing log. Raises ``NotFound`` if SQLite has none."""
    if log_url is not None:
        return MysqlEngine(MysqlAddress.parse(log_url), creates=False)
    file = data / FILE_NAME
    if not file.is_file():
        raise NotFound(
            f"There is no log at {file}. Give the data directory of the broker (--data), or the URL"
            " of its log (--log)."
        )
    return SqliteEngine(file)


check = click.option(
    "--repair", is_flag=True, help="Mend what can be derived from the log; no broker may run."
)(
    output_option("table", "Form of the output.")(
        ConfiguredCommand(
            "check",
            params=[*settings_of(serve)],
            callback=_check,
            help=_check.__doc__,
            epilog="""\b
        Examples:
          escapement check
          escapement check --config /etc/escapement/escapement.toml -o json
          escapement check --data /var/lib/escapement --repair
        """,
        )
    )
)
