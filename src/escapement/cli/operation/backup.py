"""`escapement backup` and `escapement restore`: snapshots of a log in SQLite."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import click

from escapement.cli.input.log_url import log_url
from escapement.cli.input.parameters import FlagOrVariable
from escapement.cli.output.progress import ProgressLine
from escapement.errors import InvalidRequest

_option = partial(click.option, cls=FlagOrVariable, show_default=True, show_envvar=True)
_data = _option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default="escapement-data",
    envvar="ESCAPEMENT_DATA",
    help="Data directory of the broker.",
)
_log = _option(
    "--log",
    "url",
    type=log_url,
    metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
    envvar="ESCAPEMENT_LOG",
    help="URL of the log in MySQL. The command then only prints the one to use instead.",
)
_file = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_MIB: Final = 1 << 20
# The state of one moment, although the broker goes on, with rows of up to 16 MiB. Neither the dump
# nor its restoration needs the right LOCK TABLES.
_DUMP: Final = "--single-transaction --no-tablespaces --skip-add-locks --max-allowed-packet=64M"
# The leases end at once. Messages that the original broker has delivered since are marked.
_RELEASE: Final = (
    'UPDATE leases SET clean = 0, expires_at_ms = 0, connection_ids = "";'
    ' UPDATE brokers SET expires_at_ms = 0, connection_ids = ""'
)


@click.command(
    epilog="""\b
    Examples:
      escapement backup /backups/monday.sqlite3
      escapement backup /backups/monday.sqlite3 --data /var/lib/escapement
    """
)
@_file
@_data
@_log
def backup(file: Path, data: Path, url: str | None) -> None:
    """Take a snapshot of a log in SQLite, while the broker runs.

    FILE is created. It has all messages, acknowledgements and settings of one moment, and is
    checked. The commits of the broker do not wait for the snapshot. Run the command as the user of
    the broker. A log in MySQL is backed up with mariadb-dump or mysqldump: with --log, the command
    prints how.
    """
    if url is not None:
        _use_instead(
            f"mariadb-dump {_where(url)} {_DUMP} {_without_views(url)}"
            f" --result-file={shlex.quote(str(file))} {_database(url)}"
        )
    from escapement.storage.snapshot import take

    line = ProgressLine()
    try:
        size_bytes = take(data, file, partial(_show, line))
    finally:
        line.end()
    click.echo(f"saved {file}: {size_bytes / _MIB:,.1f} MiB, checked")


@click.command(
    epilog="""\b
    Examples:
      escapement restore /backups/monday.sqlite3 --data /var/lib/escapement
    """
)
@_file
@_data
@_log
def restore(file: Path, data: Path, url: str | None) -> None:
    """Restore a snapshot of a log in SQLite into a data directory without a log.

    The directory is created if it does not exist. Its delayed index is deleted, and the next start
    of the broker builds it again. Messages that were acknowledged after the snapshot are delivered
    again. Messages that were published after it are lost. For a log in MySQL, load the dump into an
    empty database: with --log, the command prints how.
    """
    if url is not None:
        connect, name = f"mariadb {_where(url)}", _database(url)
        _use_instead(
            f"{connect} {name} < {shlex.quote(str(file))}",
            f"{connect} {name} --execute={shlex.quote(_RELEASE)}",
        )
    from escapement.storage.snapshot import restore as put_back

    line = ProgressLine()
    try:
        size_bytes = put_back(file, data, partial(_show, line))
    finally:
        line.end()
    click.echo(f"restored {data}: {size_bytes / _MIB:,.1f} MiB; start a broker on it")


def _show(line: ProgressLine, step: str, done: int, total: int) -> None:
    if line.wants:
        line.tell(f"{100 * done // max(total, 1)} % {step} of {total / _MIB:,.0f} MiB")


def _where(url: str) -> str:
    """Return the options that connect to a server. They ask for the password if there is one."""
    from escapement.storage.engine.address import MysqlAddress

    address = MysqlAddress.parse(url)
    options = {"user": address.user, "host": address.host, "port": address.port}
    if address.unix_socket is not None:
        options = {"user": address.user, "socket": address.unix_socket}
    if address.ssl_ca is not None:
        options["ssl-ca"] = address.ssl_ca
    words = [shlex.quote(f"--{key}={value}") for key, value in options.items()]
    return " ".join([*words, "--password"] if address.password else words)


def _without_views(url: str) -> str:
    """Return the options that leave out the views, for which a dump needs the right SHOW VIEW.

    `escapement migrate` creates them again, and so does a broker that may.
    """
    from escapement.storage.catalog.views import definitions
    from escapement.storage.engine.address import MysqlAddress

    database = MysqlAddress.parse(url).database
    options = (f"--ignore-table={database}.{view}" for view in sorted(definitions("mysql")))
    return " ".join(map(shlex.quote, options))


def _database(url: str) -> str:
    from escapement.storage.engine.address import MysqlAddress

    return shlex.quote(MysqlAddress.parse(url).database)


def _use_instead(*commands: str) -> NoReturn:
    lines = "".join(f"\n  {command}" for command in commands)
    raise InvalidRequest(f"the log is in MySQL or MariaDB. Use the tools of its server:{lines}")
