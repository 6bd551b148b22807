"""The options that the commands of `escapement bench` share, declared once.

A command names the options that it uses, each with a default and a help text (``Use``). If a
user gives one of the other options, the command refuses it with a line that names the commands
that use it. Some options belong to every command: the broker, the number of runs, and the
output.
"""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import trio
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from escapement.bench.outcome import Outcome
from escapement.bench.payload import PayloadSize
from escapement.bench.stage import Setting
from escapement.broker.crash import one_error
from escapement.durations import parse
from escapement.errors import InvalidRequest
from escapement.interruptible import until_interrupted
from escapement.protocol.limits import MAX_FRAME_BYTES

Measure = Callable[[], Awaitable[Outcome]]
Function = Callable[..., Any]

# Default limits of messages in flight, sent and without a receipt: about as many as a few busy
# producers have. That of batches counts messages, too: so the size of a batch does not change it.
BATCHED_IN_FLIGHT: Final = 64_000
SINGLES_IN_FLIGHT: Final = 1_000
# The most messages that a broker accepts in one batch by default.
_MOST_IN_A_BATCH: Final = 10_000
# The largest number that an option accepts: the due times of more messages take over 8 GB.
_MOST: Final = 1_000_000_000
# The longest delay that an option accepts: thirty years. The broker's own limit may be lower.
_LONGEST_MS: Final = 1_000_000_000_000


class Use(NamedTuple):
    """The default and the help of an option in one command."""

    default: Any
    help: str


def _url(text: str) -> str:
    return text if "://" in text else f"escapement://{text}"


def _size(text: str) -> PayloadSize:
    try:
        return PayloadSize.parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None


def _tick_ms(text: str) -> int:
    try:
        tick_ms = parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None
    if tick_ms == 0:
        raise click.BadParameter("the tick is too short: give at least 1ms.")
    return tick_ms


# The options that several commands share. For each argument: flag, type and metavar.
_COMMON: Final[dict[str, tuple[str, Any, str]]] = {
    "messages": ("--messages", click.IntRange(1, _MOST), "N"),
    "batch_size": ("--batch-size", click.IntRange(1, _MOST_IN_A_BATCH), "N"),
    "in_flight": ("--in-flight", click.IntRange(1, _MOST), "N"),
    "payload": ("--payload-bytes", _size, "N or N-M"),
    "window_ms": ("--window-ms", click.IntRange(0, _LONGEST_MS), "MS"),
    "rate": ("--rate", click.IntRange(1, _MOST), "N"),
    "seconds": ("--seconds", click.FloatRange(0.1, 86_400.0), "S"),
    "tick_ms": ("--tick", _tick_ms, "DURATION"),
    "pending": ("--pending", click.IntRange(0, _MOST), "N"),
}
# The shared options that every command has. A command may override the default and help.
_USUAL: Final = {
    "batch_size": Use(1000, "Messages in a batch."),
    "in_flight": Use(
        None,
        f"Most messages without a receipt; by default {BATCHED_IN_FLIGHT} in batches, or "
        f"{SINGLES_IN_FLIGHT} single ones.",
    ),
    "payload": Use("100", "Random bytes in each message: a number, or a range such as 50-500."),
    "tick_ms": Use("10ms", "Tick of the namespace."),
    "pending": Use(0, "Messages pending on another topic during the measurement."),
}
# Options that are the same for every command.
_ALWAYS: Final = (
    click.option(
        "--broker",
        type=_url,
        metavar="HOST:PORT",
        help="Measure this running broker; a URL escapement://host:port works too.",
    ),
    click.option(
        "--log",
        "log_url",
        envvar="ESCAPEMENT_LOG",
        show_envvar=True,
        metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
        help="URL of the log in MySQL; without it, the log is SQLite in the data directory.",
    ),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Data directory; a temporary one if not given.",
    ),
    click.option(
        "--runs",
        type=click.IntRange(1),
        default=5,
        show_default=True,
        help="Number of runs; the results are medians.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="How to print the results.",
    ),
)
# The commands that use each shared option. The error for other commands names them.
_users: Final[dict[str, list[str]]] = {name: [] for name in _COMMON}


def measured(**uses: Use) -> Callable[[Callable[..., Measure]], Function]:
    """Return a decorator that turns a function into a command.

    The function takes a ``Setting``, and the options in ``uses`` that are not fields of it. It
    returns a measurement, which the command runs. The command then prints the outcome.

    Args:
      uses: the shared options of the command, by argument name.
    """

    def decorate(function: Callable[..., Measure]) -> Function:
        @functools.wraps(function)
        def command(
            broker: str | None,
            log_url: str | None,
            data: Path | None,
            runs: int,
            output: str,
            payload: PayloadSize,
            batch_size: int,
            in_flight: int | None,
            tick_ms: int,
            pending: int,
            **own: Any,
        ) -> None:
            if broker is not None:
                _refuse_where("data", "log_url")
            in_flight = _checked_in_flight(batch_size, in_flight, payload)
            bar = _progress_bar()
            task = bar.add_task("starting", total=None)

            def show(what: str, done: int, of: int) -> None:
                bar.update(task, description=what, completed=done, total=of)

            setting = Setting(
                broker, data, log_url, tick_ms, payload, batch_size, in_flight, pending, runs, show
            )
            measure = function(setting, **own)
            with bar, one_error():
                outcome: Outcome = trio.run(
                    until_interrupted, measure, signal.SIGINT, signal.SIGTERM
                )
            if output == "json":
                click.echo(json.dumps(outcome.as_json()))
            else:
                Console().print(outcome.as_table())

        return _with_options(command, _USUAL | uses)

    return decorate


def _with_options(command: Function, uses: dict[str, Use]) -> Function:
    options = []
    for name, (flag, kind, metavar) in _COMMON.items():
        if name in uses:
            _users[name].append(command.__name__)
            default, meaning = uses[name]
            option = click.option(
                flag,
                name,
                type=kind,
                metavar=metavar,
                default=default,
                show_default=True,
                help=meaning,
            )
        else:
            option = click.option(flag, name, hidden=True, expose_value=False, callback=_refuse)
        options.append(option)
    for option in reversed([*options, *_ALWAYS]):
        command = option(command)
    return command


def _refuse(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        assert parameter.name is not None
        users = " and ".join(f"`bench {name}`" for name in _users[parameter.name])
        raise click.UsageError(
            f"{parameter.opts[0]} is for {users}; `bench {context.info_name}` does not use it."
        )


def _refuse_where(*names: str) -> None:
    """Raise ``UsageError`` if one of these options is on the command line beside --broker.

    The options describe a broker to start. Their environment variables are ignored.
    """
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.removesuffix('_url')} is for a broker that this command starts: "
                "leave it out with --broker."
            )


def need_own_broker(setting: Setting, what: str) -> None:
    """Raise ``UsageError`` if --broker names a running broker, which the bench must not stop.

    Args:
      what: the command or option that stops the broker, for the error.
    """
    if setting.broker_url is not None:
        raise click.UsageError(
            f"{what} stops the broker, so it starts its own: leave out --broker."
        )


def _checked_in_flight(batch_size: int, in_flight: int | None, payload: PayloadSize) -> int:
    """Return the limit of messages in flight: ``in_flight``, or the default if it is None.

    Raises:
      UsageError: if the limit is less than a batch, or a batch is too large to send.
    """
    if batch_size * payload.most_bytes > MAX_FRAME_BYTES:
        raise click.UsageError(
            f"a batch of {batch_size:,} messages of {payload} bytes is larger than "
            f"{MAX_FRAME_BYTES:,} bytes: make --batch-size or --payload-bytes smaller."
        )
    if in_flight is None:
        return SINGLES_IN_FLIGHT if batch_size == 1 else BATCHED_IN_FLIGHT
    if in_flight < batch_size:
        raise click.UsageError(
            f"--in-flight counts messages: {in_flight:,} is less than one batch "
            f"of {batch_size:,}. Make --batch-size smaller, or --in-flight larger."
        )
    return in_flight


def _progress_bar() -> ProgressBar:
    console = Console(stderr=True)
    return ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
