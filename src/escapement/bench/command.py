"""`escapement bench`: its subcommands, their options, and how they show what they found.

Figures go to stdout, as a table or with ``-o json`` as one object; progress goes to stderr.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from escapement.bench import burst as bursts
from escapement.bench import pending as pendings
from escapement.bench import publish as publishing
from escapement.bench import restart as restarts
from escapement.bench import steady
from escapement.bench.outcome import Outcome
from escapement.bench.payload import PayloadSize
from escapement.bench.stage import Setting
from escapement.durations import parse
from escapement.errors import InvalidRequest

Measure = Callable[[Setting], Awaitable[Outcome]]
# Batches in flight where nobody says otherwise: what a few busy producers have.
_BATCHES_IN_FLIGHT: Final = 64
_SINGLES_IN_FLIGHT: Final = 1_000
# As deep as a consumer's credit that keeps the line full; a tenth of what is allowed.
_PERMITS: Final = 100_000


@click.group()
def bench() -> None:
    """Measure what this machine does, through the real client over TCP.

    Each command starts a broker of its own and stops it again; --broker measures one
    that runs. Give --log a database that nothing else uses: what was measured stays in it
    until it is dropped. docs/benchmarks.md says what the figures mean.
    """


def _size(text: str) -> PayloadSize:
    try:
        return PayloadSize.parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from None


def _ms(text: str) -> int:
    try:
        return parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(str(error)) from None


_COMMON: Final = (
    click.option("--broker", metavar="URL", help="Measure this broker: escapement://host:port."),
    click.option(
        "--log",
        "log_url",
        envvar="ESCAPEMENT_LOG",
        metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
        help="Where the log is; without it, SQLite in the data directory.",
    ),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Data directory; without it, a temporary one.",
    ),
    click.option(
        "--payload-bytes",
        "payload",
        type=_size,
        default="100",
        show_default=True,
        help="Random bytes of each message, or a range such as 50-500.",
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
_TICK: Final = click.option(
    "--tick", "tick_ms", type=_ms, default="10ms", show_default=True, help="Of the namespace."
)
_PERMITS_OPTION: Final = click.option(
    "--permits",
    type=click.IntRange(1, 1_000_000),
    default=_PERMITS,
    show_default=True,
    help="Messages the consumer lets come unasked.",
)


def _messages(default: int | None) -> Callable[[Any], Any]:
    return click.option(
        "--messages",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="How many in each run.",
    )


def _common(function: Callable[..., Measure]) -> Callable[..., None]:
    """Give a command the common options, and have what it returns measured and shown."""

    @functools.wraps(function)
    def command(
        broker: str | None,
        log_url: str | None,
        data: Path | None,
        payload: PayloadSize,
        runs: int,
        output: str,
        tick_ms: int = 1000,
        **arguments: Any,
    ) -> None:
        measure = function(**arguments)
        console = Console(stderr=True)
        with ProgressBar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar:
            task = bar.add_task("starting", total=None)

            def show(what: str, done: int, of: int) -> None:
                bar.update(task, description=what, completed=done, total=of)

            setting = Setting(broker, data, log_url, tick_ms, payload, runs, show)
            outcome: Outcome = trio.run(measure, setting)
        if output == "json":
            click.echo(json.dumps(outcome.as_json()))
        else:
            Console().print(outcome.as_table())

    for option in reversed(_COMMON):
        command = option(command)
    return command


@bench.command()
@_messages(None)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 10_000),
    default=1000,
    show_default=True,
    help="Messages sent as one.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    help=f"Messages without a receipt; by default {_SINGLES_IN_FLIGHT} single ones, "
    f"or {_BATCHES_IN_FLIGHT} batches.",
)
@click.option(
    "--window-ms",
    type=click.IntRange(0),
    default=3_600_000,
    show_default=True,
    help="Random delays of up to so much; 0 gives none.",
)
@_common
def publish(
    messages: int | None, batch_size: int, in_flight: int | None, window_ms: int
) -> Measure:
    """Messages a second until durable, in batches or singly (--batch-size 1)."""
    singly = batch_size == 1
    load = publishing.Load(
        messages or (100_000 if singly else 1_000_000),
        batch_size,
        in_flight or (_SINGLES_IN_FLIGHT if singly else _BATCHES_IN_FLIGHT * batch_size),
        window_ms,
    )
    return functools.partial(publishing.measure, load=load)


@bench.command()
@_messages(1_000_000)
@click.option(
    "--window-ms",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="They are due at random within so much.",
)
@click.option("--one-by-one", is_flag=True, help="Take them with `async for message in inbox`.")
@click.option("--restart", is_flag=True, help="Stop and start the broker before they are due.")
@_PERMITS_OPTION
@_TICK
@_common
def burst(messages: int, window_ms: int, one_by_one: bool, restart: bool, permits: int) -> Measure:
    """Messages a second that are due together, until durably acknowledged."""
    return functools.partial(
        bursts.measure, burst=bursts.Burst(messages, window_ms, permits, one_by_one, restart)
    )


@bench.command()
@click.option(
    "--rate", type=click.IntRange(1), default=10_000, show_default=True, help="Messages a second."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True, help="Of each run."
)
@click.option(
    "--window-ms",
    type=click.IntRange(0),
    default=3000,
    show_default=True,
    help="Random delays of up to so much (and 200 ms more).",
)
@_PERMITS_OPTION
@_TICK
@_common
def lateness(rate: int, seconds: float, window_ms: int, permits: int) -> Measure:
    """How late messages are under a steady load."""
    return functools.partial(
        steady.measure, steady=steady.Steady(rate, seconds, window_ms, permits)
    )


@bench.command()
@click.option(
    "--pending",
    type=click.IntRange(0),
    default=1_000_000,
    show_default=True,
    help="Messages that wait for their time meanwhile.",
)
@click.option(
    "--at-once", is_flag=True, help="Kill it right after filling, not after it has come to rest."
)
@_common
def restart(pending: int, at_once: bool) -> Measure:
    """From the start of a killed broker to the first delivery, with so many pending."""
    return functools.partial(restarts.measure, restart=restarts.Restart(pending, not at_once))


@bench.command()
@click.option(
    "--pending",
    type=click.IntRange(0),
    default=10_000_000,
    show_default=True,
    help="Messages that wait for their time meanwhile.",
)
@_messages(1_000_000)
@click.option(
    "--batch-size",
    type=click.IntRange(2, 10_000),
    default=1000,
    show_default=True,
    help="Messages sent as one.",
)
@_common
def pending(pending: int, messages: int, batch_size: int) -> Measure:
    """Publishing into a topic with so many pending, against an empty one; --runs pairs."""
    load = publishing.Load(messages, batch_size, _BATCHES_IN_FLIGHT * batch_size, 0)
    return functools.partial(pendings.measure, load=load, pending=pending)
