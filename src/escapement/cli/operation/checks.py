"""The checks of a broker, from the options of `escapement serve`, which are those of `doctor`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from escapement.broker.config import DEFAULT_PARALLELISM
from escapement.broker.limits import DEFAULT_LIMITS
from escapement.cli.input.configuration import config_warnings
from escapement.doctor.checks import Checks
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.log.table_sets import Plan


def checks_of(ctx: click.Context) -> Checks:
    """Return the checks of a broker with the options of a command."""
    given = ctx.params
    return Checks(
        given["data"],
        None if given["log_url"] is None else MysqlAddress.parse(given["log_url"]),
        addresses(given["outbox_urls"]),
        addresses(given["table_urls"]),
        given["binary_logs"],
        Plan(given["table_parallelism"] or DEFAULT_PARALLELISM, bundle_count=given["bundles"] or 1),
        DEFAULT_LIMITS.connections,
        config_warnings(ctx),
    )


def addresses(urls: Sequence[str]) -> tuple[MysqlAddress, ...]:
    """Return the addresses of databases, each once."""
    return tuple(MysqlAddress.parse(url) for url in dict.fromkeys(urls))
