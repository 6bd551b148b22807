"""`escapement pipeline rebuild`: rebuild a broker's delayed index from the log."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Literal

import click

from escapement.cli.input.log_url import log_url
from escapement.cli.input.parameters import FlagOrVariable, size_bytes
from escapement.cli.output.progress import ProgressLine
from escapement.cli.pipeline.source import refusals
from escapement.pipeline.rebuild import (
    DEFAULT_MEMORY_BYTES,
    RebuildConfig,
    check_tasks,
    is_local,
    run,
)
from escapement.pipeline.rebuilding.filling import Progress
from escapement.pipeline.session import is_submitted, session

_option = partial(click.option, cls=FlagOrVariable, show_default=True, show_envvar=True)


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline rebuild --data /var/lib/escapement
      escapement pipeline rebuild --log mysql://db/escapement --data /mnt/new-disk
      escapement pipeline rebuild --log mysql://db/escapement --data /mnt/shared \\
          --master spark://host:7077

    Give a password in ESCAPEMENT_PASSWORD or in a file, rather than in --log.
    """
)
@_option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    envvar="ESCAPEMENT_DATA",
    help="Data directory of the broker that gets the index; created if missing.",
)
@_option(
    "--log",
    "url",
    type=log_url,
    metavar="mysql://USER:PASSWORD@HOST:PORT/DB",
    envvar="ESCAPEMENT_LOG",
    help="URL of the log in MySQL; without it, the log is SQLite in the data directory.",
)
@click.option(
    "--password-file",
    type=click.Path(),
    help="File with the database password; with Spark, on every machine.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    help="Where to compute the index.  [default: local, unless the master is a cluster]",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark master, such as spark://host:7077.  [default: the one of spark-submit]",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=size_bytes(least="16MiB"),
    metavar="SIZE",
    default=f"{DEFAULT_MEMORY_BYTES // 1024**2}MiB",
    show_default=True,
    help="Memory for sorting messages; with Spark, for each task.",
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

    Use it after the loss of a disk, or for a new broker. The broker then starts faster: it
    reads only the part of the log written since the rebuild. The job replaces the folder `index`
    of the data directory, and `index-NN` for each further bundle of topics. It does not change the
    log. It replaces a folder only when the new index is complete, so it may be interrupted and run
    again. On a Spark cluster, the driver and all workers must see the
    data directory.
    """
    begun_s, line = time.monotonic(), ProgressLine()

    def show(progress: Progress) -> None:
        if line.wants:
            line.tell(f"{_share(progress)}{_counts(progress, time.monotonic() - begun_s)}")

    config = RebuildConfig(data, url, engine, memory_bytes, show, password_file)
    try:
        if _needs_spark(engine, master):
            if not is_submitted():  # check first: starting a session takes seconds
                check_tasks(config)
            with session("rebuild", master, bar=False) as spark, refusals():
                done = run(spark, config)
        else:
            done = run(None, config)
    finally:
        line.end()
    click.echo(f"rebuilt the index in {data}: {_counts(done, time.monotonic() - begun_s)}")


def _needs_spark(engine: str | None, master: str | None) -> bool:
    """Return whether the job needs a Spark session.

    Under spark-submit, only the session knows the master, which decides the default engine.
    """
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
    # Show no share over 100 %: ``log_bytes`` leaves out rows written since the last checkpoint.
    if progress.read_bytes >= progress.log_bytes:
        return ""
    return f"{100 * progress.read_bytes // progress.log_bytes} %  "
