"""The `escapement admin` group, and the base of its commands.

A command sends *verbs*, such as ``topics.create``, to the broker and prints the answers. With
``-o json`` it prints the whole answer, otherwise a table, which may leave fields out.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

import click

from escapement.cli.input.remote import (
    DEFAULT_BROKER,
    Result,
    ask_broker,
    broker_addresses,
    with_broker,
)
from escapement.client.broker import Broker
from escapement.client.connection.address import Addresses

# The prefix under which click's context keeps the group's options for its commands.
_META: Final = "escapement.admin"

topic_argument = click.argument("topic")
subscription_argument = click.argument("subscription")


class AdminCommand:
    """A client that sends admin verbs to the broker and prints the answers.

    Args:
      at: the addresses of the brokers.
      output: ``table`` or ``json``.
    """

    def __init__(self, at: Addresses, output: str) -> None:
        self._at = at
        self._output = output

    @property
    def prints_json(self) -> bool:
        """Whether answers are printed as JSON."""
        return self._output == "json"

    def work(
        self, work: Callable[[Broker], Awaitable[Result]], *, observer: bool = False
    ) -> Result:
        """Run ``work`` on a connection to the broker and return its result; see ``Settings``."""
        return with_broker(self._at, work, observer=observer)

    def answer(self, verb: str, **arguments: Any) -> Any:
        """Send ``verb`` to the broker and return its answer."""
        return ask_broker(self._at, verb, **arguments)

    def ask(self, verb: str, show: Callable[[Any], None], **arguments: Any) -> None:
        """Send ``verb`` to the broker and print its answer, as JSON or with ``show``."""
        self.tell(self.answer(verb, **arguments), show)

    def tell(self, answer: Any, show: Callable[[Any], None]) -> None:
        """Print an answer, as JSON or with ``show``."""
        if self.prints_json:
            click.echo(json.dumps(answer, indent=2))
        else:
            show(answer)


def _options(*, leaf: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options --broker and -o.

    Args:
      leaf: whether they are for a command of the group, and not for the group itself. The options
        of a command default to those of the group.
    """

    def inherited(name: str) -> Any:
        return (lambda: click.get_current_context().meta[f"{_META}.{name}"]) if leaf else None

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        context.meta[f"{_META}.{option.name}"] = value

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        broker = click.option(
            "--broker",
            type=broker_addresses if leaf else str,
            metavar="HOST:PORT[,...]",
            default=inherited("broker") if leaf else DEFAULT_BROKER,
            envvar=None if leaf else "ESCAPEMENT_BROKER",
            show_default=not leaf,
            show_envvar=not leaf,
            expose_value=leaf,
            callback=None if leaf else keep,
            help="Addresses of brokers on one database.",
        )
        output = click.option(
            "-o",
            "--output",
            type=click.Choice(["table", "json"]),
            default=inherited("output") if leaf else "table",
            show_default=not leaf,
            expose_value=leaf,
            callback=None if leaf else keep,
            help="How to print the answer.",
        )
        return broker(output(command))

    return decorate


def verb(
    group: click.Group, name: str, *examples: str
) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a function the command ``name`` of ``group``.

    The function gets an ``AdminCommand`` before its own arguments.

    Args:
      examples: the arguments of each example in the command's help.
    """

    def decorate(function: Callable[..., None]) -> click.Command:
        @_options(leaf=True)
        @wraps(function)
        def command(broker: Addresses, output: str, **arguments: Any) -> None:
            function(AdminCommand(broker, output), **arguments)

        call = f"  escapement admin {group.name} {name}"
        lines = "\n".join(f"{call} {one}" for one in examples) or call
        epilog = f"\b\nExamples:\n{lines}"
        made = group.command(name, epilog=epilog)(command)
        # The help lists the command's own options first.
        made.params.sort(key=lambda param: param.name in ("broker", "output"))
        return made

    return decorate


@click.group()
@_options(leaf=False)
def admin() -> None:
    """Manage the namespaces, topics and subscriptions of a running broker.

    \b
    Examples:
      escapement admin broker stats
      escapement admin namespaces enable-delayed-message -p 1h -t 100ms shop/eu
      escapement admin topics stats shop/eu/orders -o json
    """
