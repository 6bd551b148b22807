"""`escapement admin grants`: what roles may do."""

from __future__ import annotations

from typing import Any, Final

import click

from escapement.access.grant import ACTIONS
from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.output.table import print_record, print_rows

_COLUMNS: Final = ("role", "pattern", "actions")


@click.group()
def grants() -> None:
    """Manage what roles may do."""


def _actions(context: click.Context, option: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else [one.strip() for one in text.split(",")]


@verb(
    grants,
    "add",
    "billing 'shop/eu/*' --actions produce,consume",
    "shop-admin 'shop/*' --actions admin",
)
@click.option(
    "--actions",
    callback=_actions,
    required=True,
    metavar="ACTION,...",
    help=f"What the role may do: {', '.join(ACTIONS)}.",
)
@click.argument("role")
@click.argument("pattern")
def add_grant(admin: AdminCommand, role: str, pattern: str, actions: list[str]) -> None:
    """Let a role do something with the topics that a pattern covers.

    A pattern is a topic (shop/eu/orders), a message table (table://shop/mails), or the beginning
    of one with a wildcard ('shop/eu/*', 'shop/*', 'table://shop/*'). '*' covers everything. The
    action admin includes all others.
    """
    admin.ask("grants.add", _print_one, role=role, pattern=pattern, actions=actions)


@verb(grants, "list", "", "--role billing", "--within 'shop/*'")
@click.option("--role", help="List only the grants of this role.")
@click.option("--within", metavar="PATTERN", help="List only grants that this pattern covers.")
def list_grants(admin: AdminCommand, role: str | None, within: str | None) -> None:
    """List the grants of all roles, on what your role may administer."""
    admin.ask("grants.list", _print, role=role, within=within)


@verb(grants, "remove", "billing 'shop/eu/*'", "billing 'shop/eu/*' --actions consume")
@click.option(
    "--actions",
    callback=_actions,
    metavar="ACTION,...",
    help="What the role may not do any more; all if not given.",
)
@click.argument("role")
@click.argument("pattern")
def remove_grant(admin: AdminCommand, role: str, pattern: str, actions: list[str] | None) -> None:
    """Take back a grant, or some of its actions.

    Takes effect at once: producers and consumers without a right are closed.
    """
    admin.ask("grants.remove", _print_one, role=role, pattern=pattern, actions=actions)


@verb(grants, "own", "")
def own_grants(admin: AdminCommand) -> None:
    """Show your role, your token and your grants.

    Without a role, the broker has no tokens, and you may do everything.
    """
    admin.ask("access.own", _print_own)


def _print_own(answer: dict[str, Any]) -> None:
    rows = answer.pop("grants")
    print_record(answer)
    _print([row | {"role": answer["role"]} for row in rows])


def _print_one(row: dict[str, Any]) -> None:
    _print([row])


def _print(rows: list[dict[str, Any]]) -> None:
    shown = [row | {"actions": ",".join(row["actions"]) or "none"} for row in rows]
    print_rows(shown, _COLUMNS, "no grants")
