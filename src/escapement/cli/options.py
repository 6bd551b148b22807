"""Options that several commands have, declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

kind_option = click.option(
    "--kind",
    type=click.Choice(["shared", "exclusive", "failover"]),
    default="shared",
    show_default=True,
    help="Shared obeys delays; the others deliver in the order of arrival and ignore them.",
)


def output_option(form: str, meaning: str) -> Callable[[Command], Command]:
    """``-o``: how something is printed; ``form``, which people read, or json.

    Args:
      meaning: the help's line for it.
    """
    return click.option(
        "-o",
        "--output",
        type=click.Choice([form, "json"]),
        default=form,
        show_default=True,
        help=meaning,
    )


def parquet_option(meaning: str) -> Callable[[Command], Command]:
    """``--parquet``: where a job writes what it found; ``meaning`` is the help's line for it."""
    return click.option("--parquet", metavar="PATH", help=meaning)
