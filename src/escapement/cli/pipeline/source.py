"""Where a job finds the log: options that all jobs have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from escapement.errors import EscapementError, InvalidRequest, StorageError
from escapement.pipeline.options import LogAddress, Options

Command = TypeVar("Command", bound=Callable[..., Any])

# What Java says of a failure, the innermost last.
_CAUSE: Final = "Caused by: "
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
    """What Spark reports as one line, of our own refusals and of what stops Java.

    Whatever else fails comes with its traceback: it may be our mistake.
    """
    try:
        yield
    except EscapementError:
        raise
    except Exception as error:  # Spark has many kinds, of its own and of the bridge to Java
        said = str(error).splitlines()
        ours = [line for line in said if line.startswith("escapement.errors.")]
        if ours:
            raise InvalidRequest(ours[-1].partition(": ")[2]) from None
        causes = [line for line in said if line.startswith(_CAUSE)]
        if not causes or "PythonException" in causes[-1]:
            raise
        raise StorageError(f"Spark has failed: {causes[-1].removeprefix(_CAUSE)}") from None
