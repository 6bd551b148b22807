"""`escapement doctor`: check what a broker depends on, before it starts or while it runs."""

from __future__ import annotations

from typing import Any

import click

from escapement.cli.input.configuration import ConfiguredCommand, settings_of
from escapement.cli.input.options import output_option
from escapement.cli.operation.checks import checks_of
from escapement.cli.operation.serve import serve
from escapement.cli.output.findings import print_findings


def _doctor(output: str, **_: Any) -> None:
    """Check the machine, the data directory and the databases of a broker.

    Give the same options as to `serve`. Each finding says what to do. Nothing is changed, and the
    broker may run meanwhile. The exit code is 1 if there is a warning or an error.
    """
    ctx = click.get_current_context()
    ctx.exit(print_findings(checks_of(ctx).make(), output))


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
