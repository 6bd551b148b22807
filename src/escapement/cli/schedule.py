"""`escapement schedule`: messages that the broker publishes repeatedly."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import partial, wraps
from typing import Any, BinaryIO, Final
from zoneinfo import ZoneInfo

import click

from escapement.cli.input.options import output_option, spread_option
from escapement.cli.input.parameters import duration_ms, moment, positive_duration_ms
from escapement.cli.input.remote import ask_broker, broker_option
from escapement.cli.output.table import console, print_record, print_rows
from escapement.client import content
from escapement.client.connection.address import Addresses
from escapement.client.delivery_times import at_ms
from escapement.recurrence import MISSED

_COLUMNS: Final = ("schedule", "topic", "cron", "timezone", "every_ms", "state", "next_at_ms")

Ask = Callable[..., Any]


@click.group(
    epilog="""\b
    Examples:
      escapement schedule create report reports --cron "0 9 * * mon-fri" --timezone Europe/Berlin
      escapement schedule create pulse beats --every 90s --missed skip
      escapement schedule show report
    """
)
def schedule() -> None:
    """Publish messages repeatedly, by a cron expression or at an interval.

    Schedules are named like topics: tenant/namespace/name; a name alone means
    public/default/name. Each occurrence is published exactly once.
    """


def _command(name: str, *examples: str) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a function the command ``escapement schedule NAME``.

    The function gets two arguments before its own: a callable that sends an admin verb to the
    broker and returns the answer, and the output format.

    Args:
      examples: the arguments of each example in the command's help.
    """
    lines = "\n".join(f"  escapement schedule {name} {one}".rstrip() for one in examples)

    def decorate(function: Callable[..., None]) -> click.Command:
        @schedule.command(name, epilog=f"\b\nExamples:\n{lines}")
        @output_option("table", "How to print the answer.")
        @broker_option
        @wraps(function)
        def command(output: str, at_broker: Addresses, **arguments: Any) -> None:
            function(partial(ask_broker, at_broker), output, **arguments)

        # The help lists the command's own options first.
        command.params.sort(key=lambda param: param.name in ("output", "at_broker"))
        return command

    return decorate


_name = click.argument("name")


def _end_ms(text: str) -> int:
    """Parse the end of a schedule: a time, or ``never``, which is 0."""
    return 0 if text == "never" else max(1, at_ms(moment(text)))


@_command(
    "create",
    'report reports --cron "0 9 * * mon-fri" --timezone Europe/Berlin',
    "shop/eu/pulse shop/eu/beats --every 90s --missed skip --payload tick",
    "trial offers --every 1d --until 2026-12-24T18:00+01:00",
)
@_name
@click.argument("topic")
@click.option(
    "--cron", help="Cron expression: minute, hour, day, month, weekday; optionally seconds first."
)
@click.option(
    "--timezone",
    metavar="ZONE",
    help="Time zone of the cron expression, such as Europe/Berlin; UTC if not given.",
)
@click.option(
    "--every",
    "every_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Interval between messages, from now on: 90s, 5m, 1h, 3d.",
)
@click.option(
    "--until",
    type=moment,
    metavar="TIME",
    help="Publish nothing after this time: ISO 8601 with an offset.",
)
@click.option("--payload", help="Payload of each message; empty if not given.")
@click.option(
    "--payload-file",
    type=click.File("rb"),
    metavar="FILE",
    help="File with the payload of each message.",
)
@click.option("--key", help="Key of each message.")
@spread_option
@click.option(
    "--missed",
    type=click.Choice(MISSED),
    default="last",
    show_default=True,
    help="Which occurrences to publish if the broker is more than a minute late for them, such "
    "as after an outage.",
)
def create(
    ask: Ask,
    output: str,
    name: str,
    topic: str,
    cron: str | None,
    timezone: str | None,
    every_ms: int | None,
    until: datetime | None,
    payload: str | None,
    payload_file: BinaryIO | None,
    key: str | None,
    spread_ms: int | None,
    missed: str,
) -> None:
    """Create schedule NAME, which publishes to TOPIC."""
    if (cron is None) == (every_ms is None):
        raise click.UsageError("Give either --cron or --every.")
    if timezone is not None and cron is None:
        raise click.UsageError("--timezone needs --cron.")
    if payload is not None and payload_file is not None:
        raise click.UsageError("Give --payload or --payload-file, not both.")
    body = os.fsencode(payload or "") if payload_file is None else payload_file.read()
    made = ask(
        "schedules.create",
        schedule=name,
        topic=topic,
        cron=cron,
        timezone=timezone,
        every_ms=every_ms,
        until_ms=None if until is None else at_ms(until),
        payload=body,
        key=None if key is None else content.key(key),
        spread_ms=spread_ms,
        missed=missed,
    )
    _print(made, output)


@_command(
    "update",
    'report --cron "30 8 * * mon-fri" --timezone Europe/Berlin',
    "shop/eu/pulse --every 2m --payload tock --spread 10s",
    "trial --until never",
)
@_name
@click.option("--topic", help="Publish to this topic from now on.")
@click.option("--cron", help="New cron expression, also instead of an interval.")
@click.option("--timezone", metavar="ZONE", help="New time zone of the cron expression.")
@click.option(
    "--every",
    "every_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="New interval, from now on, also instead of a cron expression.",
)
@click.option(
    "--until",
    "until_ms",
    type=_end_ms,
    metavar="TIME",
    help="Publish nothing after this time: ISO 8601 with an offset; never: without end.",
)
@click.option("--payload", help="New payload of each message.")
@click.option(
    "--payload-file", type=click.File("rb"), metavar="FILE", help="File with the new payload."
)
@click.option("--key", help='New key of each message; "": none.')
@click.option(
    "--spread",
    "spread_ms",
    type=duration_ms,
    metavar="DURATION",
    help="New span over which the due times are scattered; 0s: none.",
)
@click.option(
    "--missed", type=click.Choice(MISSED), help="Which late occurrences to publish; see create."
)
def update(
    ask: Ask,
    output: str,
    name: str,
    payload: str | None,
    payload_file: BinaryIO | None,
    key: str | None,
    **changes: Any,
) -> None:
    """Change schedule NAME. Only the given values change.

    Occurrences that are due already are published before the change.
    """
    if payload is not None and payload_file is not None:
        raise click.UsageError("Give --payload or --payload-file, not both.")
    if changes["cron"] is not None and changes["every_ms"] is not None:
        raise click.UsageError("Give --cron or --every, not both.")
    given = {name: value for name, value in changes.items() if value is not None}
    if payload_file is not None:
        given["payload"] = payload_file.read()
    elif payload is not None:
        given["payload"] = os.fsencode(payload)
    if key is not None:
        given["key"] = content.key(key)
    if not given:
        raise click.UsageError("Give at least one option to change, such as --cron.")
    _print(ask("schedules.update", schedule=name, **given), output)


@_command("run-now", "report")
@_name
def run_now(ask: Ask, output: str, name: str) -> None:
    """Publish a message of a schedule now, even if it is paused.

    Its occurrences do not change.
    """
    _print(ask("schedules.run_now", schedule=name), output)


@_command("next", "report --count 5", "report -o json")
@_name
@click.option(
    "--count",
    type=click.IntRange(1, 100),
    default=5,
    show_default=True,
    help="How many occurrences to show.",
)
def show_next(ask: Ask, output: str, name: str, count: int) -> None:
    """Show the times of a schedule's next occurrences, in its time zone."""
    found = ask("schedules.next", schedule=name, count=count)
    times = [_local(ms, found["timezone"]) for ms in found["coming_ms"]]
    if output == "json":
        click.echo(json.dumps(times, indent=2))
        return
    for at in times:
        console().print(at)
    if not times:
        click.echo(f"no occurrences: the schedule is {found['state']}", err=True)


@_command("list", "", "shop/eu -o json")
@click.argument("namespace", required=False, metavar="[TENANT/NAMESPACE]")
def list_schedules(ask: Ask, output: str, namespace: str | None) -> None:
    """List the schedules of all namespaces, or of one."""
    rows = ask("schedules.list", namespace=namespace)
    if output == "json":
        click.echo(json.dumps(rows, indent=2))
    else:
        print_rows(rows, _COLUMNS, "no schedules")


@_command("show", "report")
@_name
def show(ask: Ask, output: str, name: str) -> None:
    """Show a schedule and the times of its next ten occurrences."""
    found = ask("schedules.get", schedule=name)
    if output == "json":
        _print(found, output)
        return
    coming = found.pop("coming_ms")
    _print(found, output)
    for ms in coming:
        console().print(_local(ms, found["timezone"]))


@_command("pause", "report")
@_name
def pause(ask: Ask, output: str, name: str) -> None:
    """Pause a schedule until it is resumed."""
    _print(ask("schedules.pause", schedule=name), output)


@_command("resume", "report")
@_name
def resume(ask: Ask, output: str, name: str) -> None:
    """Resume a paused schedule, beginning with its next occurrence from now on."""
    _print(ask("schedules.resume", schedule=name), output)


@_command("delete", "shop/eu/pulse")
@_name
def delete(ask: Ask, output: str, name: str) -> None:
    """Delete a schedule. The messages it has published stay."""
    _print(ask("schedules.delete", schedule=name), output)


def _local(ms: int, timezone: str | None) -> str:
    """Return a time in a time zone as text."""
    at = datetime.fromtimestamp(ms / 1000, UTC).astimezone(_zone(timezone))
    return at.isoformat(" ", "seconds")


def _zone(name: str | None) -> tzinfo:
    """Return the time zone of this name; UTC for None or a name that this machine does not know."""
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError):
        return UTC


def _print(record: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(record, indent=2))
    else:
        print_record(record)
