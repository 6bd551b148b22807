"""The options that tell a Spark job where the log is, and the errors of such a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from escapement.errors import EscapementError, InvalidRequest, StorageError
from escapement.names import TopicName
from escapement.pipeline.options import LogAddress, Options

Command = TypeVar("Command", bound=Callable[..., Any])

# Spark reports a failure of Java as lines of text. The first line is from Python. The second has
# the outermost error, after ``_OUTERMOST``. Each line after ``_CAUSE`` has the cause of the error
# before it.
_CAUSE: Final = "Caused by: "
_OUTERMOST: Final = ": "
# How the names of Java's errors about files begin, such as a path that cannot be written to.
_IO: Final = ("java.io.", "java.nio.file.", "org.apache.hadoop.")
_OPTIONS = (
    click.option(
        "--log",
        "url",
        metavar="URL",
        help="URL mysql://host:port/database, without a password.  [default: $ESCAPEMENT_LOG]",
    ),
    click.option(
        "--data",
        type=click.Path(),
        help="Instead of --log: data directory of a broker on SQLite, on this machine.",
    ),
    click.option(
        "--user",
        help="Database user.  [default: the URL's, or else $ESCAPEMENT_USER]",
    ),
    click.option(
        "--password-file",
        "passwordFile",
        type=click.Path(),
        help="File with the password, on every machine.  [default: $ESCAPEMENT_PASSWORD]",
    ),
)


def source_options(command: Command) -> Command:
    """Add the options --log, --data, --user and --password-file to ``command``.

    Their arguments have the names that the Spark data source uses for these options.
    """
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given(topics: Sequence[str], **options: str | None) -> dict[str, str]:
    """Check the topic names and the location of the log, and return the options that are not None.

    Call it before starting a Spark session, which takes seconds.

    Args:
      options: the options of ``source_options``.

    Raises:
      InvalidRequest: if the options do not name a log, or a topic name is invalid.
    """
    for topic in topics:
        TopicName.parse(topic)
    found = {name: value for name, value in options.items() if value is not None}
    if urlsplit(found.get("url", "")).password is not None:
        raise InvalidRequest(
            "the URL of --log must have no password, which every user of the machine could see."
            " Write the password into ESCAPEMENT_PASSWORD or into the file of --password-file, or"
            " the whole URL into ESCAPEMENT_LOG"
        )
    LogAddress.of(Options(found)).engine().close()
    return found


@contextmanager
def refusals() -> Iterator[None]:
    """Turn expected errors in the ``with`` block into one line each. Spark reports them at length.

    These are the errors that escapement raises in a Spark task, and failures of Java, such as a
    directory that it cannot write to. Other exceptions keep their traceback: each may be a bug.
    """
    try:
        yield
    except EscapementError:
        raise
    except Exception as error:  # Spark raises many types, its own and those of the bridge to Java
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
        raise StorageError(f"Spark failed: {causes[-1]}") from None
