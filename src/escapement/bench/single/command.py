"""The commands `workers` and `fanout` of `escapement bench`, which have many consumers."""

from __future__ import annotations

import functools
from typing import Final

import click

from escapement.bench.options import Measure, Use, measured
from escapement.bench.single import fanout as fanning_out
from escapement.bench.single import workers as working
from escapement.bench.single.consumers import Crowd
from escapement.bench.stage import Setting

# Default number of connections of `fanout`: with one for each consumer, the number of open files
# would exceed the usual limit.
_FANOUT_CONNECTIONS: Final = 100
# Default permits of a consumer of `fanout`: the default of the client.
_FANOUT_PERMITS: Final = 1_000
# How long `fanout` sends.
_SECONDS: Final = 10.0


@click.command(
    short_help="Throughput of workers that take one message at a time.",
    epilog="\b\nExamples:\n  escapement bench workers --workers 10 --durable\n"
    "  escapement bench workers --workers 1000 --permits 20\n"
    "  escapement bench workers --sync --workers 1 --permits 1000",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Number of consumers of one shared subscription.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    metavar="N",
    help="Number of connections that the workers share; by default each worker has its own.",
)
@click.option(
    "--permits",
    type=click.IntRange(1, 1_000_000),
    default=1,
    show_default=True,
    help="Size of each worker's delivery buffer, in messages.",
)
@click.option(
    "--durable",
    is_flag=True,
    help="Wait until an acknowledgement is durable before taking the next message. Without it, the "
    "client sends acknowledgements while the worker continues.",
)
@click.option(
    "--sync",
    "blocking",
    is_flag=True,
    help="Use the blocking client, `escapement.sync`, with a thread for each worker.",
)
@measured(messages=Use(20_000, "Messages in each run; all of them are ready at its start."))
def workers(
    setting: Setting,
    messages: int,
    workers: int,
    connections: int | None,
    permits: int,
    durable: bool,
    blocking: bool,
) -> Measure:
    """Measure workers that take one message, acknowledge it, and take the next.

    All workers run in this process. If client_cpu_seconds is about equal to seconds, the client
    limits the rate.
    """
    crowd = Crowd(workers, min(connections or workers, workers), permits)
    load = working.Workers(messages, crowd, durable, blocking)
    return functools.partial(working.measure, setting, load)


@click.command(
    short_help="Lateness of messages of a topic with many subscriptions.",
    epilog="\b\nExamples:\n  escapement bench fanout --subscriptions 100 --rate 20",
)
@click.option(
    "--subscriptions",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="Number of subscriptions of the topic, with a consumer each.",
)
@click.option(
    "--connections",
    type=click.IntRange(1),
    default=_FANOUT_CONNECTIONS,
    show_default=True,
    metavar="N",
    help="Most connections that the consumers share.",
)
@measured(
    payload=Use("100", "Random bytes in each message; the first 8 are the time of sending."),
    rate=Use(50, "Messages to send per second."),
    seconds=Use(_SECONDS, "How long each run sends, in seconds."),
)
def fanout(
    setting: Setting, rate: int, seconds: float, subscriptions: int, connections: int
) -> Measure:
    """Measure how late single messages are at many subscriptions of one topic.

    In the result, messages counts deliveries. All consumers run in this process.
    """
    crowd = Crowd(subscriptions, min(connections, subscriptions), _FANOUT_PERMITS)
    load = fanning_out.Fanout(max(1, round(rate * seconds)), rate, crowd)
    return functools.partial(fanning_out.measure, setting, load)
