"""The database of an application, as an argument of commands.

A command takes its URL, or its name if a variable has the URL. A table is given after the URL, or
with the name of the database: ``mysql://app@db.example/shop mails``, or ``shop.mails``. Without a
password in the URL, the password is that of ``ESCAPEMENT_PASSWORD``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import click

from escapement.cli.input.log_url import log_url
from escapement.storage.engine.address import MysqlAddress

# The variables that a broker reads too. Each has the URLs of databases, with spaces between them.
OUTBOXES: Final = "ESCAPEMENT_OUTBOX"
TABLES: Final = "ESCAPEMENT_TABLES"

URL: Final = "mysql://USER:PASSWORD@HOST/DB"
DATABASE: Final = f"{URL} | DB"
PLACE: Final = f"{URL} TABLE | DB.TABLE"

_PASSWORD: Final = "ESCAPEMENT_PASSWORD"


class Place(NamedTuple):
    """A table, and its database by its URL or by its name."""

    url: str | None
    database: str
    table: str


def database(text: str | None, variable: str) -> MysqlAddress:
    """Return the address of a database.

    Args:
      text: its URL or its name; None for the only database of the variable.
      variable: the variable that has the URLs of databases.

    Raises:
      UsageError: if the URL is not valid, or the variable does not have exactly one fitting URL.
    """
    if text is not None and _is_url(text):
        return _with_password(log_url(text))
    what = "" if text is None else f" of the database {text}"
    url = URL if text is None else URL.replace("DB", text)
    return _of_variable(text, variable, what, f"Write {url}, or write one URL{what}")


def place(words: Sequence[str]) -> Place:
    """Parse ``URL TABLE`` or ``DB.TABLE``.

    Raises:
      UsageError: if the words have neither form.
    """
    if len(words) == 2 and _is_url(words[0]):
        return Place(log_url(words[0]), MysqlAddress.parse(words[0]).database, words[1])
    name, dot, table = words[0].partition(".")
    if len(words) > 1 or "/" in words[0] or not (dot and name and table):
        raise click.UsageError(
            "Write the table like shop.my_message, or after the URL of its database:"
            f" {URL} my_message."
        )
    return Place(None, name, table)


def database_of(where: Place, variable: str) -> MysqlAddress:
    """Return the address of the database of a table.

    Raises:
      UsageError: if its URL is neither given nor in the variable.
    """
    if where.url is not None:
        return _with_password(where.url)
    path = click.get_current_context().command_path
    name, table = where.database, where.table
    remedy = f"Write {path} {URL.replace('DB', name)} {table}, or write one URL of the database"
    return _of_variable(name, variable, f" of the database {name}", remedy, f" for {name}.{table}")


def _is_url(text: str) -> bool:
    return "/" in text


def _of_variable(
    name: str | None, variable: str, what: str, remedy: str, purpose: str = ""
) -> MysqlAddress:
    """Return the only address in the variable whose database has this name."""
    try:
        urls = [log_url(url) for url in dict.fromkeys(os.environ.get(variable, "").split())]
    except click.BadParameter as error:
        error.param_hint = f"the environment variable {variable}"
        raise
    found = [url for url in urls if name in (None, MysqlAddress.parse(url).database)]
    if len(found) != 1:
        raise click.UsageError(
            f"{variable} has {'several URLs' if found else 'no URL'}{what}. {remedy} into"
            f" {variable}{purpose}."
        )
    return _with_password(found[0])


def _with_password(url: str) -> MysqlAddress:
    address = MysqlAddress.parse(url)
    if address.password:
        return address
    return replace(address, password=os.environ.get(_PASSWORD, ""))
