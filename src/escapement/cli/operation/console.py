"""`escapement console`: serve web pages about the brokers until SIGTERM or Ctrl-C."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import click

from escapement.broker.front.certificates import TlsFiles
from escapement.cli.input.http_options import connecting, http_options
from escapement.cli.input.log_options import log_options
from escapement.cli.input.push_options import push_switch, pusher_beside
from escapement.cli.operation.serving import run_server
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.client.connection.address import Addresses
from escapement.console.config import DEFAULT_CONSOLE_PORT, ConsoleConfig
from escapement.errors import InvalidRequest
from escapement.loopback import is_loopback


@click.command(
    epilog="""\b
    Examples:
      escapement console
      escapement console --broker a.example:7650,b.example:7650 --banner production
      escapement console --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem

    Open the address in a browser. If the brokers have access control, users sign in with their
    tokens, and see and do what their grants allow. The console has no rights of its own.
    It also answers the requests of `escapement gateway`. With --push it also posts messages to
    endpoints, like `escapement push`. Only these posts use the token of the process.
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
@push_switch("console")
@log_options()
def console(
    listen: tuple[str, int],
    at_broker: Addresses,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    banner: str,
    trace_url: str,
    push: bool,
    networks: tuple[str, ...],
    target_ca: str | None,
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
    run_server(
        config,
        partial(run_console, config, people, programs),
        pusher_beside(push, at_broker, networks, target_ca),
    )


def beside(host: str, port: int, tls: TlsFiles | None) -> Callable[[str], Awaitable[None]]:
    """Return a function that serves the console beside a broker, for `escapement serve`.

    Args:
      host, port: the address of the console.
      tls: the files of the broker's TLS.

    Raises:
      InvalidRequest: if a package is missing, other machines could reach the console, or the broker
        needs TLS.
    """
    if not is_loopback(host):
        raise InvalidRequest(
            f"--console {host} is not a loopback address. For other machines, run `escapement "
            "console`, which has TLS."
        )
    config = ConsoleConfig(host, port)
    config.check(insecure=False)
    if tls is not None:
        raise InvalidRequest(
            "--console connects without TLS. Start `escapement console --broker "
            "escapements://HOST:PORT` as another process."
        )
    from escapement.console.beside import run_beside

    return partial(run_beside, config)
