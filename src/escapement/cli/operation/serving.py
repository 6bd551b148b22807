"""Runs an HTTP server of a command until SIGTERM or Ctrl-C, with or without a pusher."""

from __future__ import annotations

import click
import trio

from escapement.broker.crash import one_error
from escapement.cli.operation.stop_signal import stopped
from escapement.cli.output.table import counted
from escapement.gateway.config import GatewayConfig
from escapement.push.beside import Push, Serve, serve_and_push


def run_server(config: GatewayConfig, serve: Serve, push: Push | None) -> None:
    """Serve until SIGTERM or Ctrl-C, and print one line when everything is ready.

    Args:
      push: posts messages meanwhile; None for no posts.

    Raises:
      EscapementError: if the pusher fails.
      OSError: if the address cannot be bound.
    """
    scheme = "http" if config.tls_cert is None else "https"

    def ready(address: str, targets: int | None = None) -> None:
        beside = "" if targets is None else f" with {counted(targets, 'push target')}"
        click.echo(f"escapement {config.NAME}{beside} is ready on {scheme}://{address}")

    with one_error():
        if push is None:
            trio.run(serve, stopped, ready)
        else:
            trio.run(serve_and_push, serve, push, stopped, ready)
