"""A message as a line of output: its payload alone, or all there is to it as JSON."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import click

from escapement.client.delivery import Row


def print_payload(payload: bytes) -> None:
    """As it is; on a terminal so that it cannot command the terminal."""
    if sys.stdout.isatty():
        text = payload.decode(errors="backslashreplace")
        click.echo("".join(c if c.isprintable() or c in "\t\n" else ascii(c)[1:-1] for c in text))
    else:
        click.echo(payload)


def print_json(values: Mapping[str, Any]) -> None:
    """One object on one line; bytes as base64."""
    click.echo(json.dumps(values, default=_base64))


def plain(message: Row) -> dict[str, Any]:
    """What there is to every message, as values for ``print_json``."""
    shown: dict[str, Any] = {"id": str(message.id)}
    try:
        shown["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        shown["payload_base64"] = _base64(message.payload)
    return shown | {
        "key": message.key,
        "properties": message.properties,
        "group": message.group,
        "due_ms": message.due_ms,
    }


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")
