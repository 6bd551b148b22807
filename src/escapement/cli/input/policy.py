"""Policies on the command line: an option for each field, and readable values.

Both are made from the rule of each field, which defines its valid values and their meaning. Field
``ack_wait_ms`` becomes option ``--ack-wait``. The value ``default`` resets a field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

import click

from escapement.cli.output.table import print_record
from escapement.errors import InvalidRequest
from escapement.storage.catalog.policy import DELAY_FIELDS, Policy, rule_of
from escapement.storage.catalog.rule import Rule

Function = Callable[..., Any]

# The suffix of fields that are durations. Their options omit it: the unit is part of the value.
_DURATION: Final = "_ms"
_DEFAULT: Final = "default"
# The options for the fields of a delay policy, in a command for these alone.
DELAY_FLAGS: Final = dict(zip(DELAY_FIELDS, ("--default", "--min", "--max"), strict=True))


def policy_options(
    policy: type[Policy], *, changing: bool = False, flags: Mapping[str, str] | None = None
) -> Callable[[Function], Function]:
    """Return a decorator that adds an option for each field of a policy.

    The command gets the given values as ``policy``. There, None resets a field.

    Args:
      policy: the class of the policy.
      changing: whether at least one option is required.
      flags: the fields that the command takes, each with its option; None: all fields.
    """
    options = {name: _flag(name) for name in policy.names()} if flags is None else flags

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(*args: Any, **arguments: Any) -> Any:
            given = {name: arguments.pop(name) for name in options}
            changes = {name: value for name, value in given.items() if value is not None}
            if changing and not changes:
                first = next(iter(options.values()))
                raise click.UsageError(f"Give at least one option to change, such as {first}.")
            return function(
                *args,
                **arguments,
                policy={n: None if v == _DEFAULT else v for n, v in changes.items()},
            )

        decorated: Function = command
        for name in reversed(list(options)):
            rule = rule_of(policy, name)
            option = click.option(
                options[name],
                name,
                type=_reader(rule),
                metavar=rule.metavar,
                help=rule.help,
            )
            decorated = option(decorated)
        return decorated

    return decorate


def policy_printer(policy: type[Policy]) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that prints a record. It shows the fields of ``policy`` in words."""
    names = policy.names()

    def show(record: Mapping[str, Any]) -> None:
        print_record(
            {
                name: rule_of(policy, name).in_words(value) if name in names else value
                for name, value in record.items()
            }
        )

    return show


def _flag(name: str) -> str:
    return "--" + name.removesuffix(_DURATION).replace("_", "-")


def _reader(rule: Rule) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text == _DEFAULT:
            return text
        try:
            return rule.read_argument(text)
        except InvalidRequest as error:
            raise click.BadParameter(f"{error}.") from None

    return read
