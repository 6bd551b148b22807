"""`escapement admin push`: the endpoints to which `escapement push` posts messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from escapement.cli.admin.group import AdminCommand, subscription_argument, topic_argument, verb
from escapement.cli.input.parameters import duration_ms
from escapement.cli.input.policy import policy_options, policy_printer
from escapement.cli.output.table import print_record, print_rows
from escapement.storage.catalog.push_targets import PushPolicy

_COLUMNS: Final = ("topic", "subscription", "url", "timeout_ms", "concurrency", "paused")
_print: Final = policy_printer(PushPolicy)
_CREATED: Final = {"timeout_ms": "--timeout", "concurrency": "--concurrency", "paused": "--paused"}


@click.group()
def push() -> None:
    """Manage push targets: `escapement push` posts the messages of a subscription to a URL."""


def _print_secret(answer: dict[str, Any]) -> None:
    _print(answer)
    click.echo("Give the secret to the endpoint. It is not shown again.", err=True)


@verb(push, "create", "orders billing https://shop.example/hooks/orders")
@policy_options(PushPolicy, flags=_CREATED)
@topic_argument
@subscription_argument
@click.argument("url")
def create_target(
    admin: AdminCommand, topic: str, subscription: str, url: str, policy: dict[str, Any]
) -> None:
    """Post the messages of SUBSCRIPTION to URL, and print the secret that signs them.

    The subscription must exist and be shared. The command posts nothing itself: run `escapement
    push` for that.
    """
    admin.ask(
        "push.create",
        _print_secret,
        topic=topic,
        subscription=subscription,
        url=url,
        policy=policy,
    )


@verb(
    push, "update", "orders billing --timeout 30s", "orders billing --url https://shop.example/v2"
)
@policy_options(PushPolicy, changing=True)
@topic_argument
@subscription_argument
def update_target(
    admin: AdminCommand, topic: str, subscription: str, policy: dict[str, Any]
) -> None:
    """Change the settings of a push target.

    Only the given options change; the value "default" resets an option. `escapement push` follows
    within seconds.
    """
    admin.ask("push.update", _print, topic=topic, subscription=subscription, policy=policy)


@verb(push, "rotate", "orders billing", "orders billing --keep 0s")
@click.option(
    "--keep",
    "keep_ms",
    type=duration_ms,
    metavar="DURATION",
    help="How long posts are signed with the old secret too. At most 30d.  [default: 1d]",
)
@topic_argument
@subscription_argument
def rotate_secret(admin: AdminCommand, topic: str, subscription: str, keep_ms: int | None) -> None:
    """Replace the secret of a push target, and print the new one."""
    admin.ask("push.rotate", _print_secret, topic=topic, subscription=subscription, keep_ms=keep_ms)


@verb(push, "list", "", "--namespace shop/eu")
@click.option("--namespace", metavar="NAMESPACE", help="Only push targets of this namespace.")
def list_targets(admin: AdminCommand, namespace: str | None) -> None:
    """List push targets, without their secrets."""
    admin.ask(
        "push.list", lambda rows: print_rows(rows, _COLUMNS, "no push targets"), namespace=namespace
    )


def _simple(name: str, help: str, show: Callable[[Any], None] = _print) -> None:
    """Add a command that takes only the names of a topic and a subscription."""

    def ask(admin: AdminCommand, topic: str, subscription: str) -> None:
        admin.ask(f"push.{name}", show, topic=topic, subscription=subscription)

    ask.__doc__ = help
    verb(push, name, "orders billing")(topic_argument(subscription_argument(ask)))


_simple("show", "Show a push target, without its secret.")
_simple("pause", "Post nothing more, until resumed. Posts in progress end as usual.")
_simple("resume", "Post again.")
_simple("delete", "Delete a push target. The subscription stays.", print_record)
