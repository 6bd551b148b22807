"""A message as a line of output: only its payload, or the whole message as JSON."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from codecs import getincrementaldecoder
from collections.abc import Mapping, Sequence
from typing import Any

import click

from escapement.cli.output.printable import printable
from escapement.client.delivery import Row


def print_payload(payload: bytes) -> None:
    """Print a payload unchanged; on a terminal, escape control characters."""
    if sys.stdout.isatty():
        click.echo(printable(text(payload), keep="\t\n"))
    else:
        click.echo(payload)


def print_json(values: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Print an object or a list of objects as JSON on one line, with bytes as base64."""
    click.echo(json.dumps(_named(values), default=_json_default))


def body(payload: bytes, size_bytes: int | None = None) -> dict[str, str]:
    """Return the JSON field of a payload: ``payload`` if it is UTF-8, else ``payload_base64``.

    Args:
      payload: the payload, or its beginning.
      size_bytes: the size of the whole payload; None if ``payload`` is whole.
    """
    is_whole = size_bytes is None or len(payload) == size_bytes
    try:
        return {"payload": getincrementaldecoder("utf-8")().decode(payload, is_whole)}
    except UnicodeDecodeError:
        return {"payload_base64": _base64(payload)}


def text(payload: bytes) -> str:
    """Return a payload as text; bytes that are not UTF-8 are escaped."""
    return payload.decode(errors="backslashreplace")


def plain(message: Row) -> dict[str, Any]:
    """Return the fields that delivered and read messages share, as values for ``print_json``."""
    return {"id": str(message.id), **body(message.payload)} | {
        "key": message.key,
        "properties": message.properties,
        "group": message.group,
        "due_ms": message.due_ms,
    }


def _named(value: Any) -> Any:
    """Return ``value`` with all keys of mappings as text. Keys of properties may be other types."""
    if isinstance(value, Mapping):
        return {n if isinstance(n, str) else repr(n): _named(v) for n, v in value.items()}
    return [_named(one) for one in value] if isinstance(value, list | tuple) else value


def _json_default(value: Any) -> str:
    """Return text for a value that JSON has no type for: bytes as base64, others as Python."""
    return _base64(value) if isinstance(value, bytes) else repr(value)


def _base64(value: bytes) -> str:
    return b64encode(value).decode("ascii")
