"""`escapement bench`: its commands, and what each is about.

Figures go to stdout, as a table or with ``-o json`` as one object; progress goes to stderr.
What the commands have in common stands in ``options``.
"""

from __future__ import annotations

import functools
from typing import Final

import click

from escapement.bench import burst as bursts
from escapement.bench import failing as failures
from escapement.bench import pending as pendings
from escapement.bench import publish as publishing
from escapement.bench import restart as restarts
from escapement.bench import steady
from escapement.bench import topics as many
from escapement.bench.filling import Dress
from escapement.bench.options import Measure, Use, measured, need_own_broker
from escapement.bench.stage import Setting

# As deep as a consumer's credit that keeps the line full; a tenth of what is allowed.
_PERMITS: Final = 100_000
_HOUR_MS: Final = 3_600_000
_MONTH_MS: Final = 30 * 24 * _HOUR_MS
_SECONDS: Final = 10.0
_BACK_OFF_MS: Final = 300_000
# Of a burst: short beside it, and longer than a consumer and the broker need for a round.
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
    """Measure what this machine does, through the real client over TCP.

    Each command starts a broker of its own and stops it again; --broker measures one
    that runs. Give --log a database that nothing else uses: rows of the log stay in it until
    it is dropped.
    """


_permits = click.option(
    "--permits",
    type=click.IntRange(1, 1_000_000),
    default=_PERMITS,
    show_default=True,
    help="Messages the consumer lets come unasked.",
)


@bench.command(
    short_help="Messages a second until durable.",
    epilog="\b\nExamples:\n"
    "  escapement bench publish --batch-size 100 --payload-bytes 50-500\n"
    "  escapement bench publish --batch-size 1 --in-flight 64",
)
@measured(
    messages=Use(None, "How many in each run; by default 1000000, or 100000 if sent singly."),
    batch_size=Use(1000, "Messages sent as one; 1 sends them singly."),
    window_ms=Use(_HOUR_MS, "Random delays of up to so much; 0 gives none."),
)
def publish(setting: Setting, messages: int | None, window_ms: int) -> Measure:
    """Messages a second until durable, in batches or singly (--batch-size 1)."""
    count = messages or (100_000 if setting.batch_size == 1 else 1_000_000)
    return functools.partial(publishing.measure, setting, publishing.Load(count, window_ms))


@bench.command(
    short_help="Messages a second that are due together.",
    epilog="\b\nExamples:\n"
    "  escapement bench burst\n"
    "  escapement bench burst --keys 1000 --priorities --failing-percent 1",
)
@click.option("--one-by-one", is_flag=True, help="Take them with `async for message in inbox`.")
@click.option("--restart", is_flag=True, help="Stop and start the broker before they are due.")
@click.option(
    "--keys",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Each has one of so many keys, and of each key one message is out at a time; 0: none.",
)
@click.option("--priorities", is_flag=True, help="Each has a random priority.")
@click.option(
    "--failing-percent",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="Of so many in a hundred the first attempt fails; they are tried again.",
)
@click.option(
    "--back-off-ms",
    type=click.IntRange(0),
    default=_BURST_BACK_OFF_MS,
    show_default=True,
    metavar="MS",
    help="What has failed waits so long for its next attempt.",
)
@_permits
@measured(
    messages=Use(1_000_000, "How many in each run."),
    window_ms=Use(1000, "They are due at random within so much."),
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
    """Messages a second that are due together, until durably acknowledged."""
    if restart:
        need_own_broker(setting, "--restart")
    if one_by_one and failing_percent:
        raise click.UsageError("--failing-percent is of whole batches: leave --one-by-one out.")
    dress = Dress(keys, priorities)
    load = bursts.Burst(
        messages, window_ms, permits, one_by_one, restart, failing_percent, back_off_ms, dress
    )
    return functools.partial(bursts.measure, setting, load)


@bench.command(
    short_help="How late messages are under a steady load.",
    epilog="\b\nExamples:\n"
    "  escapement bench lateness --rate 20000 --tick 10ms -o json\n"
    "  escapement bench lateness --failing 1000000",
)
@click.option(
    "--failing",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Messages of the same subscription that fail again and again meanwhile; runs come in "
    "pairs then, the other on an empty topic.",
)
@click.option(
    "--back-off-ms",
    type=click.IntRange(1),
    default=_BACK_OFF_MS,
    show_default=True,
    metavar="MS",
    help="How long each of them waits before it is tried again, and up to a third more.",
)
@_permits
@measured(
    messages=Use(None, "How many in each run, instead of --seconds."),
    batch_size=Use(100, "Messages sent as one."),
    in_flight=Use(100_000, "Messages without a receipt at once; beyond, sending waits."),
    window_ms=Use(3000, "Random delays of up to so much (and 200 ms more)."),
    rate=Use(10_000, "Messages sent a second."),
    seconds=Use(None, f"How long each run sends; {_SECONDS:g} by default."),
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
    """How late messages are under a steady load, and that none is early."""
    if messages is not None and seconds is not None:
        raise click.UsageError("--messages and --seconds: with a --rate, one follows of the other.")
    count = messages or max(1, round(rate * (seconds or _SECONDS)))
    load = steady.Steady(count, rate, window_ms, permits)
    if failing:
        beside = failures.Failing(failing, back_off_ms)
        return functools.partial(failures.measure, setting, load, beside)
    return functools.partial(steady.measure, setting, load)


@bench.command(
    short_help="From the start of a killed broker to the first delivery.",
    epilog="\b\nExamples:\n  escapement bench restart --pending 10000000",
)
@click.option(
    "--at-once", is_flag=True, help="Kill it right after filling, not after it has come to rest."
)
@measured(
    messages=Use(1000, "Overdue ones in each run, all of which must come."),
    window_ms=Use(_MONTH_MS, "What is pending is due at random within so much, from an hour on."),
    pending=Use(1_000_000, "Messages that wait for their time meanwhile, on the same topic."),
)
def restart(setting: Setting, messages: int, window_ms: int, at_once: bool) -> Measure:
    """From the start of a killed broker to the first overdue delivery, with so many pending."""
    need_own_broker(setting, "`bench restart`")
    load = restarts.Restart(messages, window_ms, 0 if at_once else restarts.SETTLE_MS)
    return functools.partial(restarts.measure, setting, load)


@bench.command(
    name="topics",
    short_help="What many topics cost, and how soon they are back.",
    epilog="\b\nExamples:\n  escapement bench topics\n"
    "  escapement bench topics --topics 20000 --runs 3 -o json",
)
@click.option(
    "--topics",
    type=click.IntRange(1, 10_000_000),
    default=100_000,
    show_default=True,
    help="How many; each has a shared subscription and a message that waits for its time.",
)
@measured()
def topics(setting: Setting, topics: int) -> Measure:
    """Creating many topics, what the broker weighs with them, and a restart with all of them."""
    need_own_broker(setting, "`bench topics`")
    if setting.runs > topics:
        raise click.UsageError("--runs: each run takes a topic of its own, so have more --topics.")
    return functools.partial(many.measure, setting, many.Topics(topics))


@bench.command(
    short_help="Publishing with so many pending, against an empty topic.",
    epilog="\b\nExamples:\n  escapement bench pending --messages 100000 --pending 1000000",
)
@measured(
    messages=Use(1_000_000, "How many to each of the two in each run."),
    window_ms=Use(_MONTH_MS, "All of them are due at random within so much."),
    pending=Use(10_000_000, "Messages that wait for their time meanwhile, on the one topic."),
)
def pending(setting: Setting, messages: int, window_ms: int) -> Measure:
    """Publishing into a topic with so many pending, against an empty one; --runs pairs."""
    load = publishing.Load(messages, window_ms)
    return functools.partial(pendings.measure, setting, load)
