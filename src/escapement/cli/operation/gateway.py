"""`escapement gateway`: serve messages over HTTP in this process until SIGTERM or Ctrl-C."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from escapement.cli.input.http_options import connecting, http_options
from escapement.cli.input.log_options import log_options
from escapement.cli.input.push_options import push_switch, pusher_beside
from escapement.cli.operation.serving import run_server
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.client.connection.address import Addresses
from escapement.gateway.config import DEFAULT_GATEWAY_PORT, GatewayConfig


@click.command(
    epilog="""\b
    Examples:
      escapement gateway
      escapement gateway --broker a.example:7650,b.example:7650
      escapement gateway --listen 0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem
      escapement --token-file push.token gateway --push

    \b
    Then, from any language:
      curl -d 'pay me' -H 'Escapement-Delay: 3m' \\
        http://127.0.0.1:7652/v1/topics/public/default/orders/messages

    Each request needs a token if the broker has access control: the header Authorization: Bearer
    TOKEN. The gateway has no rights of its own. GET /openapi.json describes all requests.
    SIGTERM and Ctrl-C stop the gateway: it finishes the requests in progress.

    With --push the process also posts messages to endpoints, like `escapement push`. Only these
    posts use the token of the process.
    """,
)
@http_options("gateway", DEFAULT_GATEWAY_PORT)
@push_switch("gateway")
@log_options()
def gateway(
    listen: tuple[str, int],
    at_broker: Addresses,
    tls_cert: Path | None,
    tls_key: Path | None,
    insecure: bool,
    push: bool,
    networks: tuple[str, ...],
    target_ca: str | None,
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

    connected = connecting(at_broker, "gateway", "Send a token: Authorization: Bearer TOKEN.")
    beside = pusher_beside(push, at_broker, networks, target_ca)
    run_server(config, partial(run_gateway, config, connected), beside)
