"""The connection of a command to brokers: their addresses, and one connection per command.

Ctrl-C cancels the command as a whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import click
import trio

from escapement.broker.crash import one_error
from escapement.cli.input.lazy_group import REASON, TOKEN_FILE
from escapement.cli.input.parameters import host_and_port
from escapement.cli.input.tls_files import kept
from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.client.connection.address import PLAIN_SCHEME, TLS_SCHEME, Address, Addresses
from escapement.client.settings import Settings
from escapement.interruptible import until_interrupted
from escapement.protocol.limits import DEFAULT_PORT

Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_BROKER: Final = f"127.0.0.1:{DEFAULT_PORT}"


def broker_addresses(text: str) -> Addresses:
    """Parse ``host:port``, or a URL that applications use, such as ``escapements://host:port``.

    Several brokers on one database have commas between them.
    """
    scheme, _, rest = text.rpartition("://")
    if scheme not in ("", PLAIN_SCHEME, TLS_SCHEME):
        rest = text  # refused, with the text as it is
    parts = map(host_and_port, rest.split(","))
    return Addresses(Address(*part, tls=scheme == TLS_SCHEME) for part in parts)


def broker_option(command: Command) -> Command:
    """Add the option ``--broker``. The command gets its addresses as ``at_broker``."""
    return click.option(
        "--broker",
        "at_broker",
        type=broker_addresses,
        metavar="[escapements://]HOST:PORT[,...]",
        default=DEFAULT_BROKER,
        envvar="ESCAPEMENT_BROKER",
        show_default=True,
        show_envvar=True,
        help="Addresses of brokers on one database; escapements:// for TLS.",
    )(command)


def with_broker(
    at: Addresses, work: Callable[[Broker], Awaitable[Result]], *, observer: bool = False
) -> Result:
    """Run ``work`` on a connection to the brokers at ``at`` and return its result.

    ``observer`` is as in ``Settings``.

    Raises:
      EscapementError: if the broker cannot be reached, or refuses the work.
    """

    async def connected() -> Result:
        files = kept() if at.tls else {}
        settings = Settings(reason=given_reason(), observer=observer)
        async with connect(
            str(at), name="cli", token_file=token_file(), settings=settings, **files
        ) as broker:
            return await work(broker)

    with one_error():
        return trio.run(until_interrupted, connected)


def token_file() -> str | None:
    """Return the option --token-file of the command that is running."""
    return _of_command(TOKEN_FILE)


def given_reason() -> str:
    """Return the option --reason of the command that is running, "" if it is not given."""
    return _of_command(REASON) or ""


def _of_command(key: str) -> str | None:
    """Return an option of `escapement` itself, for the command that is running."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(key)


def ask_broker(at: Addresses, verb: str, **arguments: Any) -> Any:
    """Send an admin verb to the brokers at ``at``, and return the answer.

    Raises:
      EscapementError: if the broker cannot be reached, or refuses the request.
    """
    return with_broker(at, lambda broker: broker.admin(verb, **arguments))
