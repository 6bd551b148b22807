"""`escapement console`: serve web pages about the brokers until SIGTERM or Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import click
import trio

from escapement.broker.crash import one_error
from escapement.cli.input.http_options import connecting, http_options
from escapement.cli.input.log_options import log_options
from escapement.cli.operation.stop_signal import stopped
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.client.connection.address import Addresses
from escapement.console.config import DEFAULT_CONSOLE_PORT, ConsoleConfig


@click.command(
    epilog="""\b
    Examples:
      escapement console
      escapement console --broker a.example:7650,b.example:7650 --banner production
      escapement console --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem

    Open the address in a browser. If the brokers have access control, users sign in with their
    tokens, and see and do what their grants allow. The console has no rights of its own.
    It also answers the requests of `escapement gateway`.
    """,
)
@http_options("console", DEFAULT_CONSOLE_PORT)
@click.option(
    "--banner",
    metavar="TEXT",
    default="",
    envvar="ESCAPEMENT_CONSOLE_BANNER",
    show_envvar=True,
    help="Name of the environment, such as production. Each page shows it.",
)
@click.option(
    "--trace-url",
    metavar="URL",
    default="",
    envvar="ESCAPEMENT_CONSOLE_TRACE_URL",
    show_envvar=True,
    help="Address of a trace, with {trace_id} in it. Messages with a trace link to it.",
)
@log_options()
def console(
    listen: tuple[str, int],
    at_broker: Addresses,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    banner: str,
    trace_url: str,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Serve web pages that show and change what is scheduled, until SIGTERM or Ctrl-C.

    The console is a client of the brokers, and may run anywhere. It prints one line when it is
    ready.
    """
    start_logging(log_level, log_format)
    config = ConsoleConfig(*listen, tls_cert, tls_key, banner, trace_url)
    config.check(insecure=insecure)
    from escapement.console.console import run_console

    people = connecting(at_broker, "console", "Sign in with a token.")
    programs = connecting(at_broker, "gateway", "Send a token: Authorization: Bearer TOKEN.")

    def ready(address: str) -> None:
        scheme = "http" if config.tls_cert is None else "https"
        click.echo(f"escapement console is ready on {scheme}://{address}")

    with one_error():
        trio.run(run_console, config, people, programs, stopped, ready)
