"""The options by which commands select messages: --from, --until, --key, --property, --all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Any, Final

import click

from escapement.cli.input.parameters import check_span, moment, name_and_value
from escapement.cli.input.remote import Command

_OPTIONS: Final = (
    click.option(
        "--from",
        "due_from",
        type=moment,
        metavar="TIME",
        help="Messages due at this time or later.",
    ),
    click.option(
        "--until", "due_until", type=moment, metavar="TIME", help="Messages due before this time."
    ),
    click.option("--key", help="Messages with this key."),
    click.option(
        "--property",
        "properties",
        type=name_and_value,
        metavar="NAME=VALUE",
        multiple=True,
        help="Messages with this property; if given several times, with all of them.",
    ),
    click.option("--all", "everything", is_flag=True, help="All pending messages."),
)


@dataclass(frozen=True, slots=True)
class Filters:
    """The conditions that messages must fulfil; ``everything`` for all messages."""

    due_from: datetime | None
    due_until: datetime | None
    key: str | None
    properties: dict[str, str]
    everything: bool

    @property
    def given(self) -> bool:
        """Whether any filter is given."""
        return self.everything or self.has_conditions

    @property
    def has_conditions(self) -> bool:
        """Whether any filter but --all is given."""
        found = (self.due_from, self.due_until, self.key)
        return any(value is not None for value in found) or bool(self.properties)

    def conditions(self) -> dict[str, Any]:
        """Return the conditions by the names that the client's methods have for them."""
        return {
            "due_from": self.due_from,
            "due_until": self.due_until,
            "key": self.key,
            "properties": self.properties,
        }


def filter_options(command: Command) -> Command:
    """Add the options of filters to ``command``. It gets them as ``filters``."""

    @wraps(command)
    def wrapped(
        *first: Any,
        due_from: datetime | None,
        due_until: datetime | None,
        key: str | None,
        properties: Sequence[tuple[str, str]],
        everything: bool,
        **given: Any,
    ) -> Any:
        check_span(due_from, due_until)
        filters = Filters(due_from, due_until, key, dict(properties), everything)
        return command(*first, filters=filters, **given)

    decorated: Any = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]
