"""Where the log is, as a value of an option; apart, because it imports the storage."""

from __future__ import annotations

import click

from escapement.errors import InvalidRequest
from escapement.storage.engine.address import MysqlAddress


def log_url(text: str) -> str:
    """The URL itself, checked; its errors do not show it, because of the password."""
    try:
        MysqlAddress.parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None
    return text
