"""The options of commands that post messages: `escapement push`, and servers with ``--push``."""

from __future__ import annotations

import importlib.util
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import click
from click.core import ParameterSource

from escapement.cli.input.remote import Command, token_file
from escapement.cli.input.tls_files import kept
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.connection.address import Addresses
from escapement.errors import InvalidRequest
from escapement.push.beside import Push

_option = partial(click.option, show_default=True, show_envvar=True)


def push_options(command: Command) -> Command:
    """Add the options of a pusher. The command gets ``networks`` and ``target_ca``."""
    networks = _option(
        "--allow-network",
        "networks",
        multiple=True,
        metavar="NETWORK",
        envvar="ESCAPEMENT_PUSH_ALLOW_NETWORK",
        help="Network such as 10.20.0.0/16 that posts may reach although it is not public. Plain "
        "http:// is allowed there too. May be given several times.",
    )
    target_ca = _option(
        "--target-ca",
        type=click.Path(dir_okay=False),
        envvar="ESCAPEMENT_PUSH_TARGET_CA",
        help="Further certificate authorities of endpoints to trust, PEM.",
    )
    return networks(target_ca(command))


def push_switch(name: str) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--push`` and its options.

    The command gets ``push``, ``networks`` and ``target_ca``.

    Args:
      name: the name of the command.
    """
    switch = _option(
        "--push",
        is_flag=True,
        envvar=f"ESCAPEMENT_{name.upper()}_PUSH",
        help="Also post messages to endpoints, as `escapement push` does, with the token of this "
        "process.",
    )

    def decorate(command: Command) -> Command:
        return switch(push_options(command))

    return decorate


def pusher(at_broker: Addresses, networks: tuple[str, ...], target_ca: str | None) -> Push:
    """Return a function that posts messages with the token of this process. See ``run_push``.

    Raises:
      InvalidRequest: if a package is missing, or an option is not valid.
    """
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

    return partial(run_push, config, connected)


def pusher_beside(
    push: bool, at_broker: Addresses, networks: tuple[str, ...], target_ca: str | None
) -> Push | None:
    """Return the function of ``pusher`` for a server; None without ``--push``.

    Raises:
      InvalidRequest: see ``pusher``.
      UsageError: if an option of the pusher is given without ``--push``.
    """
    if push:
        return pusher(at_broker, networks, target_ca)
    # Variables may be those of an `escapement push` beside this process.
    source = click.get_current_context().get_parameter_source
    for name, option in (("networks", "--allow-network"), ("target_ca", "--target-ca")):
        if source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{option} needs --push.")
    return None
