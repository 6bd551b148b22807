"""`escapement admin namespaces`: namespaces, their policies and their delays."""

from __future__ import annotations

from typing import Any, Final

import click

from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.input.parameters import positive_duration_ms
from escapement.cli.input.policy import DELAY_FLAGS, policy_options, policy_printer
from escapement.cli.output.table import print_record, print_rows
from escapement.storage.catalog.policy import NamespacePolicy

_NAMESPACE_COLUMNS: Final = ("namespace", "delays_enabled", "granularity_ms", "tick_ms")
_print: Final = policy_printer(NamespacePolicy)


@click.group()
def namespaces() -> None:
    """Manage namespaces, their policies and their delays."""


_namespace = click.argument("namespace", metavar="TENANT/NAMESPACE")


@verb(namespaces, "list")
def list_namespaces(admin: AdminCommand) -> None:
    """List the namespaces."""
    columns = (*_NAMESPACE_COLUMNS, "topics")
    admin.ask("namespaces.list", lambda rows: print_rows(rows, columns, "no namespaces"))


@verb(namespaces, "get", "shop/eu")
@_namespace
def get_namespace(admin: AdminCommand, namespace: str) -> None:
    """Show one namespace."""
    admin.ask("namespaces.get", _print, namespace=namespace)


@verb(namespaces, "update", "shop/eu --retention 3d", "shop/eu --retention default")
@policy_options(NamespacePolicy, changing=True)
@_namespace
def update_namespace(admin: AdminCommand, namespace: str, policy: dict[str, Any]) -> None:
    """Change the policy of a namespace.

    Only the given options change; the value "default" resets an option. Takes effect at once.
    """
    admin.ask("namespaces.update", _print, namespace=namespace, policy=policy)


@verb(namespaces, "set-delays", "shop/eu --default 5m --min 1m --max 30d", "shop/eu --min default")
@policy_options(NamespacePolicy, changing=True, flags=DELAY_FLAGS)
@_namespace
def set_namespace_delays(admin: AdminCommand, namespace: str, policy: dict[str, Any]) -> None:
    """Set the default, the minimum and the maximum delay of messages in a namespace.

    The broker refuses to publish messages outside the bounds. A delay counts from the moment the
    broker accepts a message. Only the given options change; the value "default" resets an option.
    Topics may replace each value; see `escapement admin topics set-delays`.
    """
    admin.ask("namespaces.update", _print, namespace=namespace, policy=policy)


@verb(namespaces, "create", "shop/eu")
@_namespace
def create_namespace(admin: AdminCommand, namespace: str) -> None:
    """Create a namespace, with delays enabled.

    The time partition granularity is 5m and the tick is 10ms.
    """
    admin.ask("namespaces.create", _print, namespace=namespace)


@verb(namespaces, "delete", "shop/eu", "shop/eu --force --dry-run")
@click.option("--force", is_flag=True, help="Also delete its topics, and the schedules in it.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted.")
@_namespace
def delete_namespace(admin: AdminCommand, namespace: str, force: bool, dry_run: bool) -> None:
    """Delete a namespace that has no topics and no schedules.

    --force also deletes its topics with their subscriptions and messages, and the schedules in
    it or for topics in it. The command first prints the numbers of each. Interrupting it does not
    stop the deletion: the broker continues, also after a restart.
    """
    if force and not dry_run:
        going = admin.answer("namespaces.delete", namespace=namespace, dry_run=True)
        what = ", ".join(f"{name}: {going[name]}" for name in going if name != "would_delete")
        click.echo(f"deleting {namespace} with {what}", err=True)
    asked = {"namespace": namespace, "force": force, "dry_run": dry_run}
    admin.ask("namespaces.delete", print_record, **asked)


@verb(namespaces, "enable-delayed-message", "shop/eu", "-p 1h -t 100ms shop/eu")
@click.option(
    "-p",
    "--time-partition-granularity",
    "granularity_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Time span of a partition of the delayed index; unchanged if not given, 5m when created.",
)
@click.option(
    "-t",
    "--tick-duration",
    "tick_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="How late a message may be; unchanged if not given, 10ms when created.",
)
@_namespace
def enable_delayed_message(
    admin: AdminCommand, namespace: str, granularity_ms: int | None, tick_ms: int | None
) -> None:
    """Enable delayed delivery in a namespace.

    Takes effect at once. The due times of messages do not change, whatever the new values.
    """
    admin.ask(
        "namespaces.enable_delayed_message",
        _print,
        namespace=namespace,
        granularity_ms=granularity_ms,
        tick_ms=tick_ms,
    )


@verb(namespaces, "disable-delayed-message", "shop/eu")
@_namespace
def disable_delayed_message(admin: AdminCommand, namespace: str) -> None:
    """Refuse delayed messages in a namespace.

    Pending messages keep their due times and are delivered when due.
    """
    admin.ask("namespaces.disable_delayed_message", _print, namespace=namespace)
