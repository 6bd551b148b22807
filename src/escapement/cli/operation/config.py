"""`escapement config`: show the settings of `escapement serve`, and check a configuration file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from escapement.cli.input.configuration import (
    ConfiguredCommand,
    config_warnings,
    read_configuration,
    settings_of,
)
from escapement.cli.input.options import output_option
from escapement.cli.operation.serve import serve
from escapement.cli.output.table import print_values


@click.group()
def config() -> None:
    """Show and check the settings of `escapement serve`."""


def _show(output: str, **_: Any) -> None:
    """Show each setting of `escapement serve`, its value, and where the value comes from.

    Give the same options as to `serve`. Passwords and tokens are hidden.
    """
    ctx = click.get_current_context()
    for warning in config_warnings(ctx):
        click.echo(f"Warning: {warning}", err=True)
    rows = []
    for setting in settings_of(ctx.command):
        source, origin = setting.source(ctx)
        if setting.hidden and source == "default":
            continue  # a secret that is not given
        rows.append((setting.key, setting.shown(ctx), source, origin))
    if output == "json":
        names = ("setting", "value", "source", "origin")
        click.echo(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
        return
    table = [
        (key, _text(value), source if origin is None else f"{source} {origin}")
        for key, value, source, origin in rows
    ]
    print_values(("setting", "value", "source"), table, "There are no settings.")


config.add_command(
    output_option("table", "Form of the output.")(
        ConfiguredCommand(
            "show",
            params=[*settings_of(serve)],
            callback=_show,
            help=_show.__doc__,
            epilog="""\b
            Examples:
              escapement config show
              escapement config show --config /etc/escapement/escapement.toml
            """,
        )
    )
)


@config.command(
    epilog="""\b
    Example:
      escapement config check /etc/escapement/escapement.toml
    """
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def check(file: Path) -> None:
    """Check a configuration file: its names, types and values, and who can read it.

    Nothing is connected to. `escapement doctor` checks the database and the machine.
    """
    found = read_configuration(file, serve)
    for warning in found.warnings:
        click.echo(f"Warning: {warning}", err=True)
    count = len(found.values)
    click.echo(f"{file} is valid: {count} setting{'' if count == 1 else 's'}.")


def _text(value: Any) -> str | None:
    match value:
        case None | "":
            return None
        case bool():
            return "true" if value else "false"
        case list():
            return ", ".join(value) or None
        case _:
            return str(value)
