"""The options of commands that serve HTTP as clients of the brokers: the gateway, the console."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

import click

from escapement.cli.input.parameters import host_and_port
from escapement.cli.input.remote import Command, broker_option
from escapement.cli.input.tls_files import kept
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.connection.address import Addresses
from escapement.client.connection.tls import ClientFiles
from escapement.errors import Unauthenticated

_HOST: Final = "127.0.0.1"


def http_options(name: str, port: int) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a server.

    The command gets ``listen``, ``at_broker``, ``tls_cert``, ``tls_key`` and ``insecure``.

    Args:
      name: the name of the command.
      port: the port to listen on unless another one is given.
    """
    variable = f"ESCAPEMENT_{name.upper()}"
    option = partial(click.option, show_default=True, show_envvar=True)
    options: list[Callable[[Command], Command]] = [
        option(
            "--listen",
            type=host_and_port,
            metavar="HOST:PORT",
            default=f"{_HOST}:{port}",
            envvar=f"{variable}_LISTEN",
            help="Address to accept requests on; port 0 picks a free port.",
        ),
        broker_option,
        option(
            "--tls-cert",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar=f"{variable}_TLS_CERT",
            help=f"Certificate of this {name}, PEM. Requests then need HTTPS.",
        ),
        option(
            "--tls-key",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar=f"{variable}_TLS_KEY",
            help="Key of the certificate, PEM.",
        ),
        option(
            "--insecure",
            is_flag=True,
            envvar=f"{variable}_INSECURE",
            help="Allow other machines to send tokens without TLS, for example behind a proxy "
            "with TLS.",
        ),
    ]

    def decorate(command: Command) -> Command:
        for one in reversed(options):
            command = one(command)
        return command

    return decorate


def connecting(
    at_broker: Addresses, name: str, sign_in: str
) -> Callable[[str], AbstractAsyncContextManager[Broker]]:
    """Return a function that connects to the brokers with a token; "" for none.

    Args:
      name: the name of the server, which the brokers get as that of the client.
      sign_in: how the sender of a request gives a token, as a sentence.
    """
    files = kept() if at_broker.tls else {}
    paths = [files.get(one) for one in ("ca_file", "cert_file", "key_file")]
    has_role = at_broker.tls and ClientFiles.of(*paths).cert is not None

    def connected(token: str) -> AbstractAsyncContextManager[Broker]:
        if has_role and not token:
            raise Unauthenticated(
                f"{sign_in} The {name} does not lend the role of its own certificate."
            )
        return connect(str(at_broker), name=name, token=token, **files)

    return connected
