"""`escapement push`: post messages to endpoints in this process until SIGTERM or Ctrl-C."""

from __future__ import annotations

import importlib.util
import ssl
from contextlib import AbstractAsyncContextManager
from functools import partial

import click
import trio

from escapement.broker.crash import one_error
from escapement.cli.input.log_options import log_options
from escapement.cli.input.remote import broker_option, token_file
from escapement.cli.input.tls_files import kept
from escapement.cli.operation.stop_signal import stopped
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.cli.output.table import counted
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.connection.address import Addresses
from escapement.errors import InvalidRequest

_option = partial(click.option, show_default=True, show_envvar=True)


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
@_option(
    "--allow-network",
    "networks",
    multiple=True,
    metavar="NETWORK",
    envvar="ESCAPEMENT_PUSH_ALLOW_NETWORK",
    help="Network such as 10.20.0.0/16 that posts may reach although it is not public. Plain "
    "http:// is allowed there too. May be given several times.",
)
@_option(
    "--target-ca",
    type=click.Path(dir_okay=False),
    envvar="ESCAPEMENT_PUSH_TARGET_CA",
    help="Further certificate authorities of endpoints to trust, PEM.",
)
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
    if importlib.util.find_spec("httpcore") is None:
        raise InvalidRequest(
            "Push needs the package httpcore. Install it with: pip install 'escapement[push]'"
        )
    from escapement.push.addresses import network
    from escapement.push.pusher import PushConfig, run_push

    authorities = ssl.create_default_context()
    if target_ca is not None:
        try:
            authorities.load_verify_locations(target_ca)
        except OSError as error:
            raise InvalidRequest(
                f"--target-ca: {target_ca} has no certificates in PEM: {error}."
            ) from None
    config = PushConfig([network(one) for one in networks], authorities)
    files = kept() if at_broker.tls else {}
    token = token_file()

    def connected() -> AbstractAsyncContextManager[Broker]:
        return connect(str(at_broker), name="push", token_file=token, **files)

    def ready(count: int) -> None:
        click.echo(f"escapement push is ready with {counted(count, 'target')}")

    with one_error():
        trio.run(run_push, config, connected, stopped, ready)
