"""The files for TLS that a command line names, before its subcommand."""

from __future__ import annotations

from typing import Any, Final

import click

_META: Final = "escapement.cli.tls_files"


def keep(context: click.Context, files: dict[str, str | None]) -> None:
    """Keep the files, as arguments of ``connect``, for the subcommands of a context."""
    context.meta[_META] = files


def kept() -> dict[str, Any]:
    """Return the files of the command that runs."""
    context = click.get_current_context(silent=True)
    found: dict[str, Any] = context.meta.get(_META, {}) if context is not None else {}
    return found
