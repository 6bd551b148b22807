"""`escapement gateway`: serve messages over HTTP in this process until SIGTERM or Ctrl-C."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from escapement.broker.crash import one_error
from escapement.cli.input.log_options import log_options
from escapement.cli.input.parameters import host_and_port
from escapement.cli.input.remote import broker_option
from escapement.cli.input.tls_files import kept
from escapement.cli.operation.stop_signal import stopped
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.connection.address import Addresses
from escapement.client.connection.tls import ClientFiles
from escapement.errors import Unauthenticated
from escapement.gateway.config import DEFAULT_GATEWAY_PORT, GatewayConfig

_option = partial(click.option, show_default=True, show_envvar=True)
_HOST: Final = "127.0.0.1"


@click.command(
    epilog="""\b
    Examples:
      escapement gateway
      escapement gateway --broker a.example:7650,b.example:7650
      escapement gateway --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem

    \b
    Then, from any language:
      curl -d 'pay me' -H 'Escapement-Delay: 3m' \\
        http://127.0.0.1:7652/v1/topics/public/default/orders/messages

    Each request needs a token if the broker has access control: the header Authorization: Bearer
    TOKEN. The gateway has no rights of its own. GET /openapi.json describes all requests.
    SIGTERM and Ctrl-C stop the gateway: it finishes the requests in progress.
    """,
)
@_option(
    "--listen",
    type=host_and_port,
    metavar="HOST:PORT",
    default=f"{_HOST}:{DEFAULT_GATEWAY_PORT}",
    envvar="ESCAPEMENT_GATEWAY_LISTEN",
    help="Address to accept requests on; port 0 picks a free port.",
)
@broker_option
@_option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ESCAPEMENT_GATEWAY_TLS_CERT",
    help="Certificate of this gateway, PEM. Requests then need HTTPS.",
)
@_option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ESCAPEMENT_GATEWAY_TLS_KEY",
    help="Key of the certificate, PEM.",
)
@_option(
    "--insecure",
    is_flag=True,
    envvar="ESCAPEMENT_GATEWAY_INSECURE",
    help="Allow other machines to send tokens without TLS, for example behind a proxy with TLS.",
)
@log_options()
def gateway(
    listen: tuple[str, int],
    at_broker: Addresses,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Serve messages over HTTP until SIGTERM or Ctrl-C.

    The gateway is a client of the brokers, and may run anywhere. It prints one line when it is
    ready.
    """
    start_logging(log_level, log_format)
    config = GatewayConfig(*listen, tls_cert, tls_key)
    config.check(insecure=insecure)
    from escapement.gateway.gateway import run_gateway

    files = kept() if at_broker.tls else {}
    paths = [files.get(name) for name in ("ca_file", "cert_file", "key_file")]
    has_role = at_broker.tls and ClientFiles.of(*paths).cert is not None

    def connected(token: str) -> AbstractAsyncContextManager[Broker]:
        if has_role and not token:
            raise Unauthenticated(
                "Send a token: Authorization: Bearer TOKEN. The gateway does not lend the role of "
                "its own certificate."
            )
        return connect(str(at_broker), name="gateway", token=token, **files)

    def ready(address: str) -> None:
        scheme = "http" if config.tls_cert is None else "https"
        click.echo(f"escapement gateway is ready on {scheme}://{address}")

    with one_error():
        trio.run(run_gateway, config, connected, stopped, ready)
