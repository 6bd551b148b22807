"""`escapement serve`: a broker in this process, until it is told to stop.

Stdout gets one line, when connections are accepted, for whoever started the process;
everything else goes to stderr.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from escapement.broker.config import MOST_PARALLELISM, BrokerConfig
from escapement.broker.limits import DEFAULT_LIMITS, MIB
from escapement.broker.server import DEFAULT_HOST, DEFAULT_PORT, ServerConfig
from escapement.broker.server import serve as serve_until_stopped
from escapement.broker.subscription.backoff import DEFAULT_ACK_WAIT_MS
from escapement.cli.logurl import log_url
from escapement.cli.parameters import (
    FlagOrVariable,
    duration_ms,
    host_and_port,
    host_and_port_text,
    positive_duration_ms,
    size_bytes,
)
from escapement.durations import format as duration_text
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.sqlite import FILE_NAME

_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_LEVELS: Final = ("debug", "info", "warning", "error")
# Below it a single frame of the protocol would not fit.
_LEAST_INDEX_MEMORY: Final = "16MiB"


_option = partial(click.option, cls=FlagOrVariable, show_default=True, show_envvar=True)


@click.command(
    epilog="""\b
    Examples:
      escapement serve
      escapement serve --data /var/lib/escapement --listen 0.0.0.0:7650
      ESCAPEMENT_LOG=mysql://broker:secret@db:3306/escapement escapement serve

    A flag beats its environment variable, which beats the default. Give a password in
    ESCAPEMENT_LOG rather than in --log: command lines are visible to everyone on a machine.
    SIGTERM and Ctrl-C stop it in good order; a second one does not wait.
    """
)
@_option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default="escapement-data",
    envvar="ESCAPEMENT_DATA",
    help="Directory of the delayed index, and of the log where it is not in MySQL.",
)
@_option(
    "--log",
    "log_url",
    type=log_url,
    metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
    envvar="ESCAPEMENT_LOG",
    help="Where the log is; without it, SQLite in the data directory.",
)
@_option(
    "--listen",
    type=host_and_port,
    metavar="HOST:PORT",
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    envvar="ESCAPEMENT_LISTEN",
    help="Where to accept connections; port 0 picks a free one.",
)
@_option(
    "--create-topics/--no-create-topics",
    default=True,
    envvar="ESCAPEMENT_CREATE_TOPICS",
    help="Whether topics are created on first use.",
)
@_option(
    "--max-delay",
    "max_delay_ms",
    type=duration_ms,
    metavar="DURATION",
    default=duration_text(DEFAULT_LIMITS.max_delay_ms),
    envvar="ESCAPEMENT_MAX_DELAY",
    help="Refuse messages that are due later than this from now.",
)
@_option(
    "--ack-wait",
    "ack_wait_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default=duration_text(DEFAULT_ACK_WAIT_MS),
    envvar="ESCAPEMENT_ACK_WAIT",
    help="Deliver again what is not acknowledged after this; a consumer may ask for another.",
)
@_option(
    "--table-parallelism",
    type=click.IntRange(1, MOST_PARALLELISM),
    envvar="ESCAPEMENT_TABLE_PARALLELISM",
    help="Tables of the log, from its next generation on; as it is if not given, 4 at first.",
)
@_option(
    "--max-commits-per-second",
    type=click.FloatRange(0, min_open=True),
    envvar="ESCAPEMENT_MAX_COMMITS_PER_SECOND",
    help="An I/O budget: commit larger groups rather than more often; unbounded by default.",
)
@_option(
    "--index-memory",
    "index_memory_bytes",
    type=size_bytes(least=_LEAST_INDEX_MEMORY),
    metavar="SIZE",
    default=f"{DEFAULT_LIMITS.index_memory_bytes // MIB}MiB",
    envvar="ESCAPEMENT_INDEX_MEMORY",
    help="Memory of the index for what is not on disk yet; publishers wait when it is full.",
)
@_option(
    "--ready-messages",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMITS.ready_messages,
    envvar="ESCAPEMENT_READY_MESSAGES",
    help="Due messages a subscription keeps in memory; the others wait on disk.",
)
@_option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    envvar="ESCAPEMENT_LOG_LEVEL",
    help="What to tell on stderr.",
)
def serve(
    data: Path,
    log_url: str | None,
    listen: tuple[str, int],
    create_topics: bool,
    max_delay_ms: int,
    ack_wait_ms: int,
    table_parallelism: int | None,
    max_commits_per_second: float | None,
    index_memory_bytes: int,
    ready_messages: int,
    log_level: str,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It prints one line when it is ready, creates what it needs in the data directory and
    in the database, and after a crash goes on where it was.
    """
    logging.basicConfig(level=log_level.upper(), format=_LOG_FORMAT)
    limits = replace(
        DEFAULT_LIMITS,
        max_delay_ms=max_delay_ms,
        index_memory_bytes=index_memory_bytes,
        ready_messages=ready_messages,
    )
    broker = BrokerConfig(
        limits=limits,
        auto_create_topics=create_topics,
        table_parallelism=table_parallelism,
        max_commits_per_second=max_commits_per_second,
        ack_wait_ms=ack_wait_ms,
    )
    host, port = listen
    config = ServerConfig(data, log_url, host, port, broker)
    # What is there by now stays: whoever looks for garbage need not go through it each time,
    # which takes some 30 ms.
    gc.collect()
    gc.freeze()
    trio.run(partial(serve_until_stopped, config, _Announcement(_where(config))))


class _Announcement:
    """Says once that the broker is ready; it may be so again after repairing itself."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._made = False

    def __call__(self, at: str) -> None:
        if not self._made:
            host, _, port = at.rpartition(":")
            at = host_and_port_text(host, int(port))
            click.echo(f"escapement is ready on {at}, log in {self._log}")
            self._made = True


def _where(config: ServerConfig) -> str:
    if config.log_url is None:
        return f"SQLite at {config.data / FILE_NAME}"
    address = MysqlAddress.parse(config.log_url)
    server = address.unix_socket or host_and_port_text(address.host, address.port)
    return f"MySQL at {server}/{address.database}"
