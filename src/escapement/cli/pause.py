"""`escapement pause` and `escapement resume`: pause deliveries and resume them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from escapement.cli.input.options import output_option
from escapement.cli.input.parameters import moment, positive_duration_ms
from escapement.cli.input.policy import policy_printer
from escapement.cli.input.remote import ask_broker, broker_option
from escapement.client import delivery_times
from escapement.client.connection.address import Addresses
from escapement.storage.catalog.policy import SubscriptionPolicy

_topic = click.argument("topic")
_subscription = click.argument("subscription", required=False)
_output = output_option("table", "How to print the answer.")


@click.command(
    epilog="""\b
    Examples:
      escapement pause orders
      escapement pause orders billing --for 2h
      escapement pause orders billing --until 2026-12-24T18:00+01:00
    """
)
@click.option("--until", type=moment, metavar="TIME", help="Resume automatically at this time.")
@click.option(
    "--for",
    "for_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Resume automatically after this long.",
)
@_output
@broker_option
@_topic
@_subscription
def pause(
    topic: str,
    subscription: str | None,
    until: datetime | None,
    for_ms: int | None,
    output: str,
    at_broker: Addresses,
) -> None:
    """Pause the deliveries of TOPIC, or of one SUBSCRIPTION of it.

    Publishing continues. Consumers stay connected and may acknowledge their messages in
    flight. Without --until or --for, the pause lasts until `escapement resume`, also across
    a restart.
    """
    if until is not None and for_ms is not None:
        raise click.UsageError("Give --until or --for, not both.")
    answer = ask_broker(
        at_broker,
        "dispatch.pause",
        topic=topic,
        subscription=subscription,
        for_ms=for_ms,
        until_ms=None if until is None else max(1, delivery_times.at_ms(until)),
    )
    _print(answer, output)


@click.command(
    epilog="\b\nExamples:\n  escapement resume orders\n  escapement resume orders billing"
)
@_output
@broker_option
@_topic
@_subscription
def resume(topic: str, subscription: str | None, output: str, at_broker: Addresses) -> None:
    """Resume the deliveries of TOPIC, or of one SUBSCRIPTION of it.

    A topic and its subscriptions are paused independently. A subscription gets messages when
    neither it nor its topic is paused.
    """
    answer = ask_broker(at_broker, "dispatch.resume", topic=topic, subscription=subscription)
    _print(answer, output)


def _print(answer: dict[str, Any], output: str) -> None:
    if output == "json":
        click.echo(json.dumps(answer))
    else:
        policy_printer(SubscriptionPolicy)(answer)
