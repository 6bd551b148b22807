"""`escapement admin tokens`: the tokens by which clients prove their roles."""

from __future__ import annotations

import json
import time
from typing import Final

import click

from escapement.access.token import Token
from escapement.cli.admin.group import AdminCommand, verb
from escapement.cli.input.parameters import positive_duration_ms
from escapement.cli.output.table import print_record, print_rows

_COLUMNS: Final = ("id", "role", "state", "created_at_ms", "expires_at_ms", "used_at_ms")


@click.group()
def tokens() -> None:
    """Manage the tokens by which clients prove their roles."""


@verb(tokens, "create", "billing", "billing --expires-in 90d")
@click.option(
    "--expires-in",
    "expires_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    help="Time after which the token is refused. By default it does not expire.",
)
@click.argument("role")
def create_token(admin: AdminCommand, role: str, expires_ms: int | None) -> None:
    """Create a token of a role, and print it once.

    Keep it in a file that only its user can read. The broker has only its hash. A role has at most
    two valid tokens: to replace one, create another, give it to the clients, and revoke the first.
    """
    token = Token.new()
    expires_at_ms = None if expires_ms is None else time.time_ns() // 1_000_000 + expires_ms
    made = admin.answer(
        "tokens.create", role=role, id=token.id, digest=token.digest, expires_at_ms=expires_at_ms
    )
    if admin.prints_json:
        click.echo(json.dumps(made | {"token": token.text}, indent=2))
        return
    click.echo(token.text)
    click.echo(f"Token {token.id} of role {role}. It is not shown again.", err=True)


@verb(tokens, "list", "", "billing")
@click.argument("role", required=False)
def list_tokens(admin: AdminCommand, role: str | None) -> None:
    """List the tokens of all roles, or of one, without their secrets.

    The last use is up to a minute old.
    """
    admin.ask("tokens.list", lambda rows: print_rows(rows, _COLUMNS, "no tokens"), role=role)


@verb(tokens, "revoke", "5f0c3a9be217")
@click.argument("id")
def revoke_token(admin: AdminCommand, id: str) -> None:
    """Revoke a token by its id, for good.

    Its connections end at once.
    """
    admin.ask("tokens.revoke", print_record, id=id)
