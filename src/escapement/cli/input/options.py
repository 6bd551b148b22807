"""Options that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from escapement.cli.input.parameters import positive_duration_ms
from escapement.names import SUBSCRIPTION_KINDS

Command = TypeVar("Command", bound=Callable[..., Any])

kind_option = click.option(
    "--kind",
    type=click.Choice(SUBSCRIPTION_KINDS),
    default="shared",
    show_default=True,
    help="Only shared subscriptions obey delays; the others deliver in arrival order.",
)


spread_option = click.option(
    "--spread",
    "spread_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Scatter the due times over this span, beginning at the due time.",
)


def output_option(form: str, meaning: str, *others: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the option ``-o``, which selects how to print the result.

    Args:
      form: the name of the output for people, which is the default. The other output is json.
      meaning: the help of the option.
      others: names of further outputs.
    """
    return click.option(
        "-o",
        "--output",
        type=click.Choice([form, "json", *others]),
        default=form,
        show_default=True,
        help=meaning,
    )


def parquet_option(meaning: str) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--parquet``, the path of a job's result, with this help."""
    return click.option("--parquet", metavar="PATH", help=meaning)
