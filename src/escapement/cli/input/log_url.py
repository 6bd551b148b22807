"""The URL of the log as the value of an option.

This parser has a module of its own, so that other parsers do not import the storage package.
"""

from __future__ import annotations

import click

from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress


def log_url(text: str) -> str:
    """Check the URL of a log and return it. Errors do not show it: it may contain a password."""
    try:
        MysqlAddress.parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None
    return text
