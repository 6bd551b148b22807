"""Where a job finds the log: options that all jobs have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from escapement.errors import EscapementError, InvalidRequest, StorageError
from escapement.names import TopicName
from escapement.pipeline.options import URL_VARIABLE, LogAddress, Options

Command = TypeVar("Command", bound=Callable[..., Any])

# What Java says of a failure: the outermost, behind a line of Python's, and the innermost last.
_CAUSE: Final = "Caused by: "
_OUTERMOST: Final = ": "
# Of a place that it cannot write to.
_IO: Final = ("java.io.", "java.nio.file.", "org.apache.hadoop.")
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


def given(topics: Sequence[str], **options: str | None) -> dict[str, str]:
    """Those options that were given, after a look at what they say of the log, and at the names.

    For before there is a session, which takes seconds to begin.

    Raises:
      InvalidRequest: no log can be found by them, or what stands for a topic cannot be one.
    """
    for topic in topics:
        TopicName.parse(topic)
    found = {name: value for name, value in options.items() if value is not None}
    if not {"url", "data"} & found.keys() and not os.environ.get(URL_VARIABLE):
        raise InvalidRequest(
            "where is the log? Give --log mysql://host:port/database, or --data (the directory of a"
            f" broker on SQLite), or set {URL_VARIABLE}"
        )
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
        causes = [line.removeprefix(_CAUSE) for line in said if line.startswith(_CAUSE)]
        if not causes and len(said) > 1:
            outermost = said[1].removeprefix(_OUTERMOST)
            causes = [outermost] if outermost.startswith(_IO) else []
        if not causes or "PythonException" in causes[-1]:
            raise
        raise StorageError(f"Spark has failed: {causes[-1]}") from None
