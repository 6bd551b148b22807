"""`escapement pipeline rebuild`: a broker's delayed index again, from the log."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Literal

import click

from escapement.cli.logurl import log_url
from escapement.cli.parameters import FlagOrVariable, size_bytes
from escapement.cli.pipeline.progress import ProgressLine
from escapement.cli.pipeline.source import refusals
from escapement.pipeline.filling import Progress
from escapement.pipeline.rebuild import (
    DEFAULT_MEMORY_BYTES,
    RebuildConfig,
    check_tasks,
    is_local,
    run,
)
from escapement.pipeline.session import is_submitted, session

_option = partial(click.option, cls=FlagOrVariable, show_default=True, show_envvar=True)


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline rebuild --data /var/lib/escapement
      escapement pipeline rebuild --log mysql://db/escapement --data /mnt/new-disk
      escapement pipeline rebuild --log mysql://db/escapement --data /mnt/shared \\
          --master spark://host:7077

    A password is in ESCAPEMENT_PASSWORD, or a file, rather than in --log.
    """
)
@_option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="ESCAPEMENT_DATA",
    help="Data directory of the broker that is to have the index; made if missing.",
)
@_option(
    "--log",
    "url",
    type=log_url,
    metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
    envvar="ESCAPEMENT_LOG",
    help="Where the log is; without it, SQLite in the data directory.",
)
@click.option(
    "--password-file",
    type=click.Path(),
    help="A file that has the password; with Spark on every machine.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    help="Where it is computed.  [default: local, unless the master is a cluster]",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark's master, as spark://host:7077.  [default: what spark-submit says]",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=size_bytes(least="16MiB"),
    metavar="SIZE",
    default=f"{DEFAULT_MEMORY_BYTES // 1024**2}MiB",
    show_default=True,
    help="Memory for messages that are being sorted; with Spark, of each task.",
)
def rebuild(
    data: Path,
    url: str | None,
    password_file: str | None,
    engine: Literal["local", "spark"] | None,
    master: str | None,
    memory_bytes: int,
) -> None:
    """Rebuild the delayed index of a broker from its log, while no broker runs.

    After the loss of a disk, or for a new broker: its start then reads only what the log got
    since. What was in DIRECTORY/index is replaced; the log is only read. Until the job has
    ended nothing changes, so it may be interrupted and run again. On a cluster of Spark the
    directory has to be one that the driver and all workers see.
    """
    begun_s, line = time.monotonic(), ProgressLine()

    def show(progress: Progress) -> None:
        if line.wants:
            line.tell(f"{_share(progress)}{_counts(progress, time.monotonic() - begun_s)}")

    config = RebuildConfig(data, url, engine, memory_bytes, show, password_file)
    try:
        if _needs_spark(engine, master):
            if not is_submitted():  # it will be by tasks, and a session takes seconds to begin
                check_tasks(config)
            with session("rebuild", master, bar=False) as spark, refusals():
                done = run(spark, config)
        else:
            done = run(None, config)
    finally:
        line.end()
    click.echo(f"rebuilt {data / 'index'}: {_counts(done, time.monotonic() - begun_s)}")


def _needs_spark(engine: str | None, master: str | None) -> bool:
    """Whether there has to be a session, be it to see what its master is."""
    if engine is not None:
        return engine == "spark"
    if master is not None:
        return not is_local(master)
    return is_submitted()


def _counts(progress: Progress, seconds: float) -> str:
    rate = progress.messages / max(seconds, 0.001)
    return (
        f"{progress.messages:,} messages read, {progress.pending:,} in the index,"
        f" {seconds:.1f} s, {rate:,.0f} messages/s"
    )


def _share(progress: Progress) -> str:
    # What was written since the last checkpoint is not counted in the log's size.
    if progress.read_bytes >= progress.log_bytes:
        return ""
    return f"{100 * progress.read_bytes // progress.log_bytes} %  "
