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
from escapement.pipeline.filling import Progress
from escapement.pipeline.rebuild import DEFAULT_MEMORY_BYTES, RebuildConfig, run

_option = partial(click.option, cls=FlagOrVariable, show_default=True, show_envvar=True)


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline rebuild --data /var/lib/escapement
      escapement pipeline rebuild --log mysql://db/escapement --data /mnt/new-disk

    Give a password in ESCAPEMENT_LOG rather than in --log.
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
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Where it is computed. There is no Spark engine yet: spark is refused.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=size_bytes(least="16MiB"),
    metavar="SIZE",
    default=f"{DEFAULT_MEMORY_BYTES // 1024**2}MiB",
    show_default=True,
    help="Memory for messages that are being sorted.",
)
def rebuild(
    data: Path, url: str | None, engine: Literal["local", "spark"], memory_bytes: int
) -> None:
    """Rebuild the delayed index of a broker from its log, while no broker runs.

    After the loss of a disk, or for a new broker: its start then reads only what the log got
    since. What was in DIRECTORY/index is replaced; the log is only read. Until the job has
    ended nothing changes, so it may be interrupted and run again.
    """
    begun_s, line = time.monotonic(), ProgressLine()

    def show(progress: Progress) -> None:
        if line.wants:
            line.tell(f"{_share(progress)}{_counts(progress, time.monotonic() - begun_s)}")

    try:
        done = run(None, RebuildConfig(data, url, engine, memory_bytes, show))
    finally:
        line.end()
    click.echo(f"rebuilt {data / 'index'}: {_counts(done, time.monotonic() - begun_s)}")


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
