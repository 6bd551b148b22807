"""The URL of the log as the value of an option.

This is a module of its own because it imports the storage.
"""

from __future__ import annotations

import click

from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress


def log_url(text: str) -> str:
    """Check and return the URL. Errors do not show it, because it may contain a password."""
    try:
        MysqlAddress.parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None
    return text
