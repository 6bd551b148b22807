"""The group `escapement pipeline` of the jobs that work directly on the log."""

from __future__ import annotations

from typing import Final

import click

from escapement.cli.input.lazy_group import LazyGroup
from escapement.errors import InvalidRequest

# For each job: the module that defines its command, and its one-line help.
_JOBS: Final = {
    "archive": ("escapement.cli.pipeline.archive", "Archive finished messages as Parquet."),
    "audit": (
        "escapement.cli.pipeline.audit",
        "Count messages again and report what does not add up.",
    ),
    "forecast": (
        "escapement.cli.pipeline.forecast",
        "Count how many messages fall due in each hour or day.",
    ),
    "lag": (
        "escapement.cli.pipeline.lag",
        "Show how late messages were delivered and acknowledged.",
    ),
    "rebuild": (
        "escapement.cli.pipeline.rebuild",
        "Rebuild a broker's delayed index from its log.",
    ),
}
# The packages that the extra ``escapement[spark]`` installs.
_OF_THE_EXTRA: Final = ("pyspark", "pyarrow", "pandas")


class _Jobs(LazyGroup):
    """The group of jobs. Without Spark, a job that needs it fails with a one-line error."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in _OF_THE_EXTRA:
                raise
            from escapement.pipeline.session import NEEDS_SPARK

            raise InvalidRequest(NEEDS_SPARK) from None


@click.group(cls=_Jobs, table=_JOBS)
def pipeline() -> None:
    """Run a job directly on the log.

    \b
    Examples:
      escapement pipeline forecast orders --log mysql://db/escapement
      escapement pipeline lag --for 1h --log mysql://db/escapement
      escapement pipeline archive --to s3a://bucket/archive --log mysql://db/escapement
      escapement pipeline audit --log mysql://db/escapement
      escapement pipeline rebuild --data /var/lib/escapement
    """
