"""Options of forecasts: the length of a time span, and how far to look ahead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, TypeVar

import click

from escapement.cli.input.parameters import positive_duration_ms

Command = TypeVar("Command", bound=Callable[..., Any])

_MINUTE_MS: Final = 60_000
# For each --by: the length of a span, the default of --for, and the ``strftime`` format in which
# the beginning of a span is shown.
LENGTHS: Final = {
    "minute": (_MINUTE_MS, 60 * _MINUTE_MS, "%a %d %b %H:%M"),
    "hour": (60 * _MINUTE_MS, 24 * 60 * _MINUTE_MS, "%a %d %b %H:%M"),
    "day": (24 * 60 * _MINUTE_MS, 14 * 24 * 60 * _MINUTE_MS, "%a %d %b %Y"),
}

_OPTIONS = (
    click.option(
        "--by",
        type=click.Choice(list(LENGTHS)),
        default="hour",
        show_default=True,
        help="Length of each time span.",
    ),
    click.option(
        "--for",
        "within_ms",
        type=positive_duration_ms,
        metavar="DURATION",
        help="How far to look ahead.  [default: 1h by minute, 1d by hour, 2w by day]",
    ),
)


def span_options(command: Command) -> Command:
    """Add the options --by and --for.

    The command gets ``by``, a key of ``LENGTHS``, and ``within_ms``, None if --for is not given.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def midnight_ms() -> int:
    """Return the time at which today began, by this machine's current offset from UTC."""
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    return int(midnight.timestamp() * 1000)
