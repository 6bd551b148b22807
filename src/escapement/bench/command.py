"""The commands of `escapement bench`.

Results go to stdout, as a table or, with ``-o json``, as one JSON object. Progress goes to stderr.
The options that the commands share are in ``options``, and the commands for many consumers in
``single.command``.
"""

from __future__ import annotations

import functools
from typing import Final

import click

from escapement.bench.filling import Dress
from escapement.bench.measurements import burst as bursts
from escapement.bench.measurements import catchup as catching_up
from escapement.bench.measurements import failing as failures
from escapement.bench.measurements import pending as pendings
from escapement.bench.measurements import publish as publishing
from escapement.bench.measurements import restart as restarts
from escapement.bench.measurements import steady
from escapement.bench.measurements import topics as many
from escapement.bench.options import Measure, Use, measured, need_own_broker
from escapement.bench.single.command import fanout, workers
from escapement.bench.stage import Setting

# Default permits of the consumer: enough to keep the connection busy, a tenth of the limit.
_PERMITS: Final = 100_000
_HOUR_MS: Final = 3_600_000
_MONTH_MS: Final = 30 * 24 * _HOUR_MS
# For `bench lateness`: how long a run sends, and the back-off of failing messages.
_SECONDS: Final = 10.0
_BACK_OFF_MS: Final = 300_000
# For `bench burst`: a back-off shorter than the burst, but longer than a round trip between
# consumer and broker.
_BURST_BACK_OFF_MS: Final = 100


@click.group(
    epilog="""\b
    Examples:
      escapement bench publish --batch-size 100 --payload-bytes 50-500
      escapement bench lateness --rate 20000 --tick 10ms --pending 1000000 -o json
      escapement bench burst --broker escapement://broker.example:7650

    docs/benchmarks.md says what the figures mean.
    """
)
def bench() -> None:
    """Measure a broker on this machine, through the real client over TCP.

    Each command starts a broker of its own and stops it again; --broker measures a running
    one. Give --log a database that nothing else uses: rows of the log stay in it until it is
    dropped.
    """


_permits = click.option(
    "--permits",
    type=click.IntRange(1, 1_000_000),
    default=_PERMITS,
    show_default=True,
    help="Size of the consumer's delivery buffer, in messages.",
)


@bench.command(
    short_help="Publish throughput, until messages are durable.",
    epilog="\b\nExamples:\n"
    "  escapement bench publish --batch-size 100 --payload-bytes 50-500\n"
    "  escapement bench publish --batch-size 1 --topics 1000\n"
    "  escapement bench publish --batch-size 1 --in-flight 1 --rest-ms 20 --messages 500\n"
    "  escapement bench publish --batch-size 1 --in-flight 1 --per-producer 3 --topics 1000",
)
@click.option(
    "--topics",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="Number of topics; batches or single messages go to them in turn.",
)
@click.option(
    "--per-producer",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Sends with one producer before it is closed and one of the next topic is opened; 0 keeps "
    "a producer of each topic open.",
)
@click.option(
    "--rest-ms",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="MS",
    help="Rest of each sending task between a receipt and its next send.",
)
@click.option(
    "--sync",
    "blocking",
    is_flag=True,
    help="Submit single messages from one thread with the blocking client, `escapement.sync`.",
)
@measured(
    messages=Use(None, "Messages in each run; by default 1000000, or 100000 with --batch-size 1."),
    batch_size=Use(1000, "Messages in a batch; 1 sends single messages."),
    window_ms=Use(_HOUR_MS, "Longest random delay; 0 for no delays."),
)
def publish(
    setting: Setting,
    messages: int | None,
    window_ms: int,
    topics: int,
    per_producer: int,
    rest_ms: int,
    blocking: bool,
) -> Measure:
    """Measure how many messages a second become durable, in batches or single sends."""
    if blocking and (setting.batch_size > 1 or per_producer or rest_ms):
        raise click.UsageError(
            "--sync submits single messages: give --batch-size 1, and leave out --per-producer "
            "and --rest-ms."
        )
    count = messages or (100_000 if setting.batch_size == 1 else 1_000_000)
    load = publishing.Load(count, window_ms, topics, per_producer, rest_ms, blocking)
    return functools.partial(publishing.measure, setting, load)


@bench.command(
    short_help="Delivery throughput for messages that are due together.",
    epilog="\b\nExamples:\n"
    "  escapement bench burst\n"
    "  escapement bench burst --keys 1000 --priorities --failing-percent 1",
)
@click.option(
    "--one-by-one", is_flag=True, help="Consume with `async for message in inbox`, not in batches."
)
@click.option("--restart", is_flag=True, help="Restart the broker before the messages are due.")
@click.option(
    "--keys",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of different keys; 0 for none. One message of each key is in flight at a time.",
)
@click.option("--priorities", is_flag=True, help="Give each message a random priority.")
@click.option(
    "--failing-percent",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="Percentage of messages whose first attempt fails. They are retried.",
)
@click.option(
    "--back-off-ms",
    type=click.IntRange(0),
    default=_BURST_BACK_OFF_MS,
    show_default=True,
    metavar="MS",
    help="Back-off of failed messages before the next attempt.",
)
@_permits
@measured(
    messages=Use(1_000_000, "Messages in each run."),
    window_ms=Use(1000, "Messages are due at random times within this window."),
)
def burst(
    setting: Setting,
    messages: int,
    window_ms: int,
    one_by_one: bool,
    restart: bool,
    keys: int,
    priorities: bool,
    failing_percent: int,
    back_off_ms: int,
    permits: int,
) -> Measure:
    """Measure how fast messages due together are delivered and durably acknowledged."""
    if restart:
        need_own_broker(setting, "--restart")
    if one_by_one and failing_percent:
        raise click.UsageError("--failing-percent works only in batches: leave out --one-by-one.")
    dress = Dress(keys, priorities)
    load = bursts.Burst(
        messages, window_ms, permits, one_by_one, restart, failing_percent, back_off_ms, dress
    )
    return functools.partial(bursts.measure, setting, load)


@bench.command(
    short_help="Lateness of messages under a steady load.",
    epilog="\b\nExamples:\n"
    "  escapement bench lateness --rate 20000 --tick 10ms -o json\n"
    "  escapement bench lateness --failing 1000000",
)
@click.option(
    "--failing",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Messages of the same subscription that keep failing during the run. Each run is then "
    "repeated on an empty topic.",
)
@click.option(
    "--back-off-ms",
    type=click.IntRange(1),
    default=_BACK_OFF_MS,
    show_default=True,
    metavar="MS",
    help="Back-off of each failing message; up to a third is added at random.",
)
@_permits
@measured(
    messages=Use(None, "Messages in each run, instead of --seconds."),
    batch_size=Use(100, "Messages in a batch."),
    in_flight=Use(100_000, "Most messages without a receipt; sending waits at this limit."),
    window_ms=Use(3000, "Longest random delay; 200 ms are added to each."),
    rate=Use(10_000, "Messages to send per second."),
    seconds=Use(None, f"How long each run sends, in seconds; {_SECONDS:g} by default."),
)
def lateness(
    setting: Setting,
    messages: int | None,
    window_ms: int,
    rate: int,
    seconds: float | None,
    permits: int,
    failing: int,
    back_off_ms: int,
) -> Measure:
    """Measure how late messages are under a steady load, and count early ones."""
    if messages is not None and seconds is not None:
        raise click.UsageError(
            "Give --messages or --seconds, not both: --rate determines the other."
        )
    count = messages or max(1, round(rate * (seconds or _SECONDS)))
    load = steady.Steady(count, rate, window_ms, permits)
    if failing:
        beside = failures.Failing(failing, back_off_ms)
        return functools.partial(failures.measure, setting, load, beside)
    return functools.partial(steady.measure, setting, load)


@bench.command(
    short_help="Time from the start of a killed broker to the first delivery.",
    epilog="\b\nExamples:\n  escapement bench restart --pending 10000000",
)
@click.option(
    "--at-once",
    is_flag=True,
    help="Kill the broker right after publishing, without letting it rest first.",
)
@click.option(
    "--without-index",
    is_flag=True,
    help="Delete the delayed index before each start, as if the broker started on another machine.",
)
@measured(
    messages=Use(1000, "Overdue messages in each run; all of them must arrive."),
    window_ms=Use(
        _MONTH_MS,
        "Pending messages are due at random times within this window, which begins in an hour.",
    ),
    pending=Use(1_000_000, "Messages pending on the same topic during each run."),
)
def restart(
    setting: Setting, messages: int, window_ms: int, at_once: bool, without_index: bool
) -> Measure:
    """Measure the time from the start of a killed broker to its first overdue delivery."""
    need_own_broker(setting, "`bench restart`")
    settle_ms = 0 if at_once else restarts.SETTLE_MS
    load = restarts.Restart(messages, window_ms, settle_ms, without_index)
    return functools.partial(restarts.measure, setting, load)


@bench.command(
    name="topics",
    short_help="Cost of many topics, and restart time with them.",
    epilog="\b\nExamples:\n  escapement bench topics\n"
    "  escapement bench topics --topics 20000 --runs 3 -o json",
)
@click.option(
    "--topics",
    type=click.IntRange(1, 10_000_000),
    default=100_000,
    show_default=True,
    help="Number of topics, each with a shared subscription and a pending message.",
)
@measured()
def topics(setting: Setting, topics: int) -> Measure:
    """Measure the creation of many topics, the broker's memory, and a restart with them."""
    need_own_broker(setting, "`bench topics`")
    if setting.runs > topics:
        raise click.UsageError(
            "Each run needs a topic of its own: give fewer --runs or more --topics."
        )
    return functools.partial(many.measure, setting, many.Topics(topics))


@bench.command(
    short_help="Publish throughput with many messages pending, against an empty topic.",
    epilog="\b\nExamples:\n  escapement bench pending --messages 100000 --pending 1000000",
)
@measured(
    messages=Use(1_000_000, "Messages to each of the two topics in each run."),
    window_ms=Use(_MONTH_MS, "Messages are due at random times within this window."),
    pending=Use(10_000_000, "Messages pending on one of the topics."),
)
def pending(setting: Setting, messages: int, window_ms: int) -> Measure:
    """Measure publishing to a topic with many messages pending, and to an empty one.

    Each of the --runs publishes to both topics.
    """
    load = publishing.Load(messages, window_ms)
    return functools.partial(pendings.measure, setting, load)


@bench.command(
    short_help="Time of a new subscription to catch up with a long log.",
    epilog="\b\nExamples:\n  escapement bench catchup --messages 5000000",
)
@_permits
@measured(messages=Use(1_000_000, "Messages in the log, without delays."))
def catchup(setting: Setting, messages: int, permits: int) -> Measure:
    """Measure how fast a new shared subscription from `earliest` consumes a log.

    The messages are published once. Each run opens a new subscription.
    """
    load = catching_up.Catchup(messages, permits)
    return functools.partial(catching_up.measure, setting, load)


bench.add_command(workers)
bench.add_command(fanout)
