"""The options that the commands of `escapement bench` have in common, declared once.

A command says which of them it uses, with the default and the meaning that they have there
(``Use``). Those it does not name it takes as well, and refuses with one line that says whose
they are. What remains belongs to every command: where the broker is, how often to measure,
and how to print what was found.
"""

from __future__ import annotations

import functools
import json
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
from escapement.durations import parse
from escapement.errors import InvalidRequest
from escapement.protocol.limits import MAX_FRAME_BYTES

Measure = Callable[[], Awaitable[Outcome]]
Function = Callable[..., Any]

# Without a receipt where nobody says otherwise: what a few busy producers have.
BATCHES_IN_FLIGHT: Final = 64
SINGLES_IN_FLIGHT: Final = 1_000
# As many messages as a broker takes in one batch by default.
_MOST_IN_A_BATCH: Final = 10_000
# More is a slip of the finger: columns of so many times take gigabytes.
_MOST: Final = 1_000_000_000
# Thirty years; a broker may refuse less.
_LONGEST_MS: Final = 1_000_000_000_000


class Use(NamedTuple):
    """What an option is to one command."""

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
        raise click.BadParameter("a tick of nothing is too short.")
    return tick_ms


# By the name of the argument: the flag, what may be written, and how that is called.
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
# What is the same in every command that sends, unless it says otherwise.
_USUAL: Final = {
    "batch_size": Use(1000, "Messages sent as one."),
    "in_flight": Use(
        None,
        f"Messages without a receipt at once; by default {BATCHES_IN_FLIGHT} batches, or "
        f"{SINGLES_IN_FLIGHT} single ones.",
    ),
    "payload": Use("100", "Random bytes of each message, or a range such as 50-500."),
    "tick_ms": Use("10ms", "Tick of the namespace."),
    "pending": Use(0, "Messages that wait for their time meanwhile, on a topic beside."),
}
_ALWAYS: Final = (
    click.option(
        "--broker",
        type=_url,
        metavar="HOST:PORT",
        help="Measure this broker; also as escapement://host:port.",
    ),
    click.option(
        "--log",
        "log_url",
        envvar="ESCAPEMENT_LOG",
        show_envvar=True,
        metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
        help="Where the log is; without it, SQLite in the data directory.",
    ),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Data directory; without it, a temporary one.",
    ),
    click.option(
        "--runs", type=click.IntRange(1), default=5, show_default=True, help="Medians are of these."
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="How to print the figures.",
    ),
)
# Which commands use an option, for the line that refuses it elsewhere.
_users: Final[dict[str, list[str]]] = {name: [] for name in _COMMON}


def measured(**uses: Use) -> Callable[[Callable[..., Measure]], Function]:
    """Make a command of a function that takes a ``Setting`` and what ``uses`` adds to it.

    What the function returns is carried out, and what that finds is printed.
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
            with bar:
                outcome: Outcome = trio.run(measure)
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
            f"{parameter.opts[0]} is for {users}; `bench {context.info_name}` has no use for it."
        )


def _refuse_where(*names: str) -> None:
    """Beside --broker; what stands in the environment is for brokers that are started."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.removesuffix('_url')} is for a broker that is started; "
                "--broker names one that runs."
            )


def need_own_broker(setting: Setting, what: str) -> None:
    """Raise ``UsageError`` if the broker is not ours to end."""
    if setting.broker_url is not None:
        raise click.UsageError(f"{what} ends the broker, so it starts its own: leave --broker out.")


def _checked_in_flight(batch_size: int, in_flight: int | None, payload: PayloadSize) -> int:
    """How many are in flight, where that and the size of a batch go together."""
    if batch_size * payload.most_bytes > MAX_FRAME_BYTES:
        raise click.UsageError(
            f"a batch of {batch_size:,} messages of {payload} bytes is larger than "
            f"{MAX_FRAME_BYTES:,} bytes: make --batch-size or --payload-bytes smaller."
        )
    if in_flight is None:
        return SINGLES_IN_FLIGHT if batch_size == 1 else BATCHES_IN_FLIGHT * batch_size
    if in_flight < batch_size:
        raise click.UsageError(
            f"--in-flight counts messages: {in_flight:,} are less than one batch "
            f"of {batch_size:,}; make --batch-size smaller, or --in-flight larger."
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
