"""Parsers of option values: addresses, durations, sizes, times.

Each function is the ``type`` of an option. For invalid text it raises ``BadParameter``, a usage
error that names the option.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Final, overload
from urllib.parse import urlsplit

import click

from escapement.client.delivery_times import Where
from escapement.durations import parse
from escapement.errors import InvalidRequest
from escapement.protocol.limits import DEFAULT_PORT

_ENVIRONMENT: Final = click.core.ParameterSource.ENVIRONMENT
_SIZE: Final = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)?")
_BYTES_OF: Final = {None: 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


class FlagOrVariable(click.Option):
    """An option that may come from the environment. Its errors name the source of the value."""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        assert self.name is not None
        if ctx is not None and ctx.get_parameter_source(self.name) is _ENVIRONMENT:
            return f"the environment variable {self.envvar}"
        return click.Parameter.get_error_hint(self, ctx)  # the hint names only the flag


def duration_ms(text: str) -> int:
    """Parse a duration such as ``500ms``, ``30s``, ``5m``, ``1h``, ``3d`` or ``2w``."""
    try:
        return parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(f"{error}.") from None


def positive_duration_ms(text: str) -> int:
    """Parse a duration of at least one millisecond."""
    found_ms = duration_ms(text)
    if found_ms == 0:
        raise click.BadParameter("the duration is too short: give at least 1ms.")
    return found_ms


def size_bytes(*, least: str) -> Callable[[str], int]:
    """Return a parser of sizes such as ``64MiB`` or ``4096`` that refuses sizes below ``least``."""

    def read(text: str) -> int:
        found, bound = _bytes(text), _bytes(least)
        assert bound is not None, least
        if found is None:
            raise click.BadParameter(f"{text!r} is not a size: write 64MiB, 1GiB or plain bytes.")
        if found < bound:
            raise click.BadParameter(f"{text} is less than {least}.")
        return found

    return read


@overload
def host_and_port_or(default: int) -> Callable[[str], tuple[str, int]]: ...


@overload
def host_and_port_or(default: None) -> Callable[[str], tuple[str, int | None]]: ...


def host_and_port_or(default: int | None) -> Callable[[str], tuple[str, int | None]]:
    """Return a parser of ``host``, ``host:port`` or ``[address]:port`` with a default port."""

    def read(text: str) -> tuple[str, int | None]:
        if text.isdecimal():  # would be the address of a host, 0.0.29.226 for 7650
            raise click.BadParameter(
                f"{text!r} is only a port. Write HOST:PORT, such as 127.0.0.1:{text}."
            )
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or parts.netloc != text or "@" in text:
            raise click.BadParameter(
                f"{text!r} is not host:port, such as 127.0.0.1:{default or DEFAULT_PORT}."
            )
        return host, default if port is None else port

    return read


host_and_port = host_and_port_or(DEFAULT_PORT)


def host_and_port_text(host: str, port: int) -> str:
    """Return the text that ``host_and_port`` parses into ``host`` and ``port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def moment(text: str) -> datetime:
    """Parse an ISO 8601 time, which must have an offset from UTC."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a time such as 2026-12-24T18:00+01:00."
        ) from None
    if at.utcoffset() is None:
        raise click.BadParameter(
            f"{text!r} has no time zone. Add an offset such as +01:00, or Z for UTC."
        )
    return at


def name_and_value(text: str) -> tuple[str, str]:
    """Parse a message property ``NAME=VALUE`` into its name and value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE.")
    return name, value


def start_position(text: str) -> Where:
    """Parse where a subscription begins: latest, earliest, an offset, a message id, or a time.

    A message id stays text, because the topic is not known here: see ``position_of``.
    """
    if text in ("latest", "earliest") or "@" in text:
        return text
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    if not text[:1].isdigit():
        raise click.BadParameter(
            f"{text!r} is not latest, earliest, an offset, a message id, or a time such as "
            "2026-12-24T18:00+01:00."
        )
    return moment(text)


def check_span(due_from: datetime | None, due_until: datetime | None) -> None:
    """Raise ``UsageError`` if both times are given and ``due_until`` is not the later one."""
    if due_from is not None and due_until is not None and due_until <= due_from:
        raise click.UsageError("--until must be later than --from.")


def _bytes(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    return None if match is None else int(match[1]) * _BYTES_OF[match[2]]
