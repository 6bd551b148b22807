"""`escapement serve`: run a broker in this process until SIGTERM or Ctrl-C.

When the broker accepts connections, it prints one line to stdout, which a program that started it
can wait for. The log of the process goes to stderr.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from escapement.allocator import share_one_heap
from escapement.broker.config import (
    DEFAULT_AUDIT_RETENTION_MS,
    MOST_PARALLELISM,
    BrokerConfig,
)
from escapement.broker.front.certificates import CLIENT_CERTIFICATES, ClientCertificates, TlsFiles
from escapement.broker.limits import DEFAULT_LIMITS, MIB
from escapement.broker.server import DEFAULT_HOST, ServerConfig
from escapement.broker.server import serve as serve_until_stopped
from escapement.broker.side_port.config import DEFAULT_HTTP_PORT, SidePortConfig
from escapement.broker.subscription.retries.backoff import DEFAULT_ACK_WAIT_MS
from escapement.cli.input.configuration import ConfiguredCommand, Setting, config_warnings
from escapement.cli.input.database_urls import database_url_option
from escapement.cli.input.log_options import log_options
from escapement.cli.input.parameters import (
    duration_ms,
    host_and_port,
    host_and_port_or,
    host_and_port_text,
    positive_duration_ms,
    size_bytes,
)
from escapement.cli.operation.checks import addresses, checks_of
from escapement.cli.operation.console import beside
from escapement.cli.output.log_format import LogFormat, start_logging
from escapement.console.config import DEFAULT_CONSOLE_PORT
from escapement.durations import format as duration_text
from escapement.errors import EscapementError, InvalidRequest
from escapement.event_log import EventLog
from escapement.garbage import search_seldom
from escapement.protocol.limits import DEFAULT_PORT
from escapement.storage.binary_log import check_package
from escapement.storage.bundles import MAX_BUNDLES
from escapement.storage.engine.address import MysqlAddress
from escapement.storage.engine.sqlite import FILE_NAME

# The least memory of the index. A single protocol frame would not fit into less.
_LEAST_INDEX_MEMORY: Final = "16MiB"

_log = EventLog(__name__)

_option = partial(click.option, cls=Setting, show_default=True, show_envvar=True)


@click.command(
    cls=ConfiguredCommand,
    epilog="""\b
    Examples:
      escapement serve
      escapement serve --config /etc/escapement/escapement.toml
      escapement admin bootstrap --data /var/lib/escapement
      escapement serve --data /var/lib/escapement --listen 0.0.0.0:7650
      ESCAPEMENT_LOG=mysql://broker:secret@db:3306/escapement escapement serve

    A flag overrides its environment variable, which overrides the configuration file, which
    overrides the default. Give a password in ESCAPEMENT_LOG or in a file rather than in --log:
    every user of a machine can see its command lines.
    SIGTERM and Ctrl-C stop the broker gracefully; a second one stops it at once.
    """,
)
@_option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default="escapement-data",
    envvar="ESCAPEMENT_DATA",
    help="Directory of the delayed index, and of the log unless it is in MySQL.",
)
@database_url_option(
    "--log",
    "log_url",
    help="URL of the log in MySQL; without it, the log is SQLite in the data directory.",
)
@database_url_option(
    "--outbox",
    "outbox_urls",
    multiple=True,
    help="Database of an application whose outbox is served; may be repeated.",
)
@database_url_option(
    "--tables",
    "table_urls",
    multiple=True,
    help="Database of an application whose message tables are served; may be repeated.",
)
@_option(
    "--binlog/--no-binlog",
    "binary_logs",
    default=False,
    envvar="ESCAPEMENT_BINLOG",
    help="Read the binary logs of these databases' servers, to find new rows at once.",
)
@_option(
    "--listen",
    type=host_and_port,
    metavar="HOST:PORT",
    default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
    envvar="ESCAPEMENT_LISTEN",
    help="Address to accept connections on; port 0 picks a free port.",
)
@_option(
    "--advertise",
    type=host_and_port_or(None),
    metavar="HOST[:PORT]",
    envvar="ESCAPEMENT_ADVERTISE",
    help="Address that clients and other brokers are told, if it is not that of --listen."
    " Without PORT, it has the port of --listen.",
)
@_option(
    "--insecure",
    is_flag=True,
    envvar="ESCAPEMENT_INSECURE",
    help="Accept other machines although there are no tokens; everyone may do everything.",
)
@_option(
    "--tls-cert",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ESCAPEMENT_TLS_CERT",
    help="Certificate of this broker, PEM. Connections then need TLS. SIGHUP reads it again.",
)
@_option(
    "--tls-key",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ESCAPEMENT_TLS_KEY",
    help="Key of the certificate, PEM.",
)
@_option(
    "--tls-client-ca",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="ESCAPEMENT_TLS_CLIENT_CA",
    help="Authorities of clients, PEM. Clients then need a certificate of one of them.",
)
@_option(
    "--tls-client-certificates",
    type=click.Choice(CLIENT_CERTIFICATES),
    default="required",
    envvar="ESCAPEMENT_TLS_CLIENT_CERTIFICATES",
    help="With optional, a client needs a certificate of --tls-client-ca or a token.",
)
@_option(
    "--create-topics/--no-create-topics",
    default=True,
    envvar="ESCAPEMENT_CREATE_TOPICS",
    help="Create topics on first use.",
)
@_option(
    "--max-delay",
    "max_delay_ms",
    type=duration_ms,
    metavar="DURATION",
    default=duration_text(DEFAULT_LIMITS.max_delay_ms),
    envvar="ESCAPEMENT_MAX_DELAY",
    help="Longest delay of a message; publishing with a longer one is refused.",
)
@_option(
    "--ack-wait",
    "ack_wait_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default=duration_text(DEFAULT_ACK_WAIT_MS),
    envvar="ESCAPEMENT_ACK_WAIT",
    help="Redeliver messages not acknowledged within this time; consumers may set their own.",
)
@_option(
    "--audit-retention",
    "audit_retention_ms",
    type=positive_duration_ms,
    metavar="DURATION",
    default=duration_text(DEFAULT_AUDIT_RETENTION_MS),
    envvar="ESCAPEMENT_AUDIT_RETENTION",
    help="How long the audit log keeps an action.",
)
@_option(
    "--bundles",
    type=click.IntRange(1, MAX_BUNDLES),
    envvar="ESCAPEMENT_BUNDLES",
    help="Bundles of a new database: the parts that several brokers can share. 1 by default.",
)
@_option(
    "--table-parallelism",
    type=click.IntRange(1, MOST_PARALLELISM),
    envvar="ESCAPEMENT_TABLE_PARALLELISM",
    help="Tables in each new generation of the log; unchanged if not given, 4 in a new log.",
)
@_option(
    "--max-commits-per-second",
    type=click.FloatRange(0, min_open=True),
    envvar="ESCAPEMENT_MAX_COMMITS_PER_SECOND",
    help="I/O budget: a busy broker at this limit commits larger groups. No limit by default.",
)
@_option(
    "--index-memory",
    "index_memory_bytes",
    type=size_bytes(least=_LEAST_INDEX_MEMORY),
    metavar="SIZE",
    default=f"{DEFAULT_LIMITS.index_memory_bytes // MIB}MiB",
    envvar="ESCAPEMENT_INDEX_MEMORY",
    help="Memory of the index for messages not yet on disk; publishers wait when it is full.",
)
@_option(
    "--ready-messages",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMITS.ready_messages,
    envvar="ESCAPEMENT_READY_MESSAGES",
    help="Most due messages a subscription keeps in memory; the others stay on disk.",
)
@_option(
    "--http",
    type=host_and_port_or(DEFAULT_HTTP_PORT),
    metavar="HOST:PORT",
    envvar="ESCAPEMENT_HTTP",
    help="Address of the HTTP side port: health, metrics. Off by default.",
)
@_option(
    "--http-admin/--no-http-admin",
    default=False,
    envvar="ESCAPEMENT_HTTP_ADMIN",
    help="Serve /admin/v1 on the HTTP side port, for programs on this machine.",
)
@_option(
    "--http-insecure/--no-http-insecure",
    default=False,
    envvar="ESCAPEMENT_HTTP_INSECURE",
    help="Allow --http on an address that other machines reach.",
)
@_option(
    "--console",
    type=host_and_port_or(DEFAULT_CONSOLE_PORT),
    is_flag=False,
    flag_value=f"{DEFAULT_HOST}:{DEFAULT_CONSOLE_PORT}",
    metavar="[HOST:PORT]",
    envvar="ESCAPEMENT_CONSOLE",
    help=f"Serve the console in this process, for development; {DEFAULT_HOST}:"
    f"{DEFAULT_CONSOLE_PORT} if no address is given. Off by default.",
)
@log_options(Setting)
@click.pass_context
def serve(
    ctx: click.Context,
    data: Path,
    log_url: str | None,
    outbox_urls: tuple[str, ...],
    table_urls: tuple[str, ...],
    binary_logs: bool,
    listen: tuple[str, int],
    advertise: tuple[str, int | None] | None,
    insecure: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    tls_client_certificates: ClientCertificates,
    create_topics: bool,
    max_delay_ms: int,
    ack_wait_ms: int,
    audit_retention_ms: int,
    bundles: int | None,
    table_parallelism: int | None,
    max_commits_per_second: float | None,
    index_memory_bytes: int,
    ready_messages: int,
    http: tuple[str, int] | None,
    http_admin: bool,
    http_insecure: bool,
    console: tuple[str, int] | None,
    log_level: str,
    log_format: LogFormat,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    The broker prints one line when it is ready. It creates its files in the data directory and
    its tables in the database. After a crash it continues where it was.
    """
    start_logging(log_level, log_format)
    for warning in config_warnings(ctx):
        _log.warning("config.readable_by_others", "%s", warning)
    if binary_logs:
        check_package()
    side_port = None if http is None else SidePortConfig(*http, admin=http_admin)
    if side_port is not None:
        side_port.check(insecure=http_insecure)
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
        outboxes=addresses(outbox_urls),
        tables=addresses(table_urls),
        binary_logs=binary_logs,
        audit_retention_ms=audit_retention_ms,
        checks=checks_of(ctx).make,
    )
    host, port = listen
    tls = _tls_files(tls_cert, tls_key, tls_client_ca, tls_client_certificates)
    config = ServerConfig(
        data,
        log_url,
        host,
        port,
        advertise,
        insecure,
        broker,
        tls,
        side_port,
        bundles,
    )
    companion = None if console is None else beside(*console, tls)
    # Otherwise each thread keeps the memory of large messages that it has freed, together several
    # hundred MiB.
    share_one_heap()
    search_seldom()
    with _failure_logged(ctx, log_format):
        ready = partial(_announce, _where(config))
        trio.run(partial(serve_until_stopped, config, ready, companion))


def _tls_files(
    cert: Path | None,
    key: Path | None,
    client_ca: Path | None,
    client_certificates: ClientCertificates,
) -> TlsFiles | None:
    """Return the files of the broker's TLS, or None without TLS.

    Raises:
      InvalidRequest: if one is given without another that it needs.
    """
    if (cert is None) != (key is None):
        raise InvalidRequest("--tls-cert and --tls-key need each other")
    if client_ca is None and client_certificates == "optional":
        raise InvalidRequest("--tls-client-certificates optional needs --tls-client-ca")
    if cert is None or key is None:
        if client_ca is not None:
            raise InvalidRequest("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    return TlsFiles(cert, key, client_ca, client_certificates)


@contextmanager
def _failure_logged(ctx: click.Context, log_format: LogFormat) -> Iterator[None]:
    """Log the error that ends a broker, if the log is JSON. Otherwise the command line prints it.

    Programs read a log in JSON, so each line must be JSON.
    """
    try:
        yield
    except EscapementError as error:
        if log_format != "json":
            raise
        _log.error("broker.failed", "%s", error, code=error.code)
        ctx.exit(1)
    except Exception:
        if log_format != "json":
            raise
        _log.exception("broker.failed", "the broker has a bug and ends")
        ctx.exit(1)


def _announce(log: str, at: str) -> None:
    host, _, port = at.rpartition(":")
    click.echo(f"escapement is ready on {host_and_port_text(host, int(port))}, log in {log}")


def _where(config: ServerConfig) -> str:
    if config.log_url is None:
        return f"SQLite at {config.data / FILE_NAME}"
    address = MysqlAddress.parse(config.log_url)
    server = address.unix_socket or host_and_port_text(address.host, address.port)
    return f"MySQL at {server}/{address.database}"
