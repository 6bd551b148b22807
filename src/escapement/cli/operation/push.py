"""`escapement push`: post messages to endpoints in this process until SIGTERM or Ctrl-C."""

from __future__ import annotations

import click
import trio

from escapement.broker.crash import one_error
from escapement.cli.input.log_options import log_options
from escapement.cli.input.push_options import push_options, pusher
from escapement.cli.input.remote import broker_option
from escapement.cli.operation.stop_signal import stopped
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.cli.output.table import counted
from escapement.client.connection.address import Addresses


@click.command(
    epilog="""\b
    Examples:
      escapement push
      escapement push --broker a.example:7650,b.example:7650
      escapement push --allow-network 10.20.0.0/16

    \b
    Tell the broker first where to post the messages of a subscription:
      escapement admin subscriptions create orders billing
      escapement admin push create orders billing https://shop.example/hooks/orders

    If the broker has access control, push needs a token whose role has `admin` and `consume` on the
    topics. Several processes may run at once. SIGTERM and Ctrl-C stop the process: it waits for the
    posts in progress.
    """,
)
@broker_option
@push_options
@log_options()
def push(
    at_broker: Addresses,
    networks: tuple[str, ...],
    target_ca: str | None,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Post the messages of subscriptions to HTTPS endpoints until SIGTERM or Ctrl-C.

    Posts are signed as Standard Webhooks describes it. The process is a client of the brokers, and
    may run anywhere. It prints one line when it is ready.
    """
    start_logging(log_level, log_format)
    run = pusher(at_broker, networks, target_ca)

    def ready(count: int) -> None:
        click.echo(f"escapement push is ready with {counted(count, 'target')}")

    with one_error():
        trio.run(run, stopped, ready)
