"""Where a job finds the log: options that all jobs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from escapement.errors import EscapementError, InvalidRequest
from escapement.pipeline.options import LogAddress, Options

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--log",
        "url",
        metavar="URL",
        help="mysql://host:port/database, without a password.  [default: $ESCAPEMENT_LOG]",
    ),
    click.option(
        "--data",
        type=click.Path(),
        help="Instead: the data directory of a broker on SQLite, on this machine.",
    ),
    click.option(
        "--user",
        help="Instead of one in the URL.  [default: the URL's, or else $ESCAPEMENT_USER]",
    ),
    click.option(
        "--password-file",
        "passwordFile",
        type=click.Path(),
        help="A file that has the password, on every machine.  [default: $ESCAPEMENT_PASSWORD]",
    ),
)


def source_options(command: Command) -> Command:
    """``url``, ``data``, ``user``, ``passwordFile``: the names that the data source knows."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given(**options: str | None) -> dict[str, str]:
    """Those options that were given, after a look at what they say of the log.

    For before there is a session, which takes seconds to begin.

    Raises:
      InvalidRequest: no log can be found by them.
    """
    found = {name: value for name, value in options.items() if value is not None}
    LogAddress.of(Options(found)).engine().close()
    return found


@contextmanager
def refusals() -> Iterator[None]:
    """What Spark reports of our own refusals, as one line instead of its traceback."""
    try:
        yield
    except EscapementError:
        raise
    except Exception as error:  # Spark has many kinds, of its own and of the bridge to Java
        ours = [line for line in str(error).splitlines() if line.startswith("escapement.errors.")]
        if not ours:
            raise
        raise InvalidRequest(ours[-1].partition(": ")[2]) from None
