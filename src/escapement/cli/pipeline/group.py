"""The group of the pipeline's jobs."""

from __future__ import annotations

import click


@click.group()
def pipeline() -> None:
    """Run a job on the log itself.

    \b
    Examples:
      escapement pipeline forecast orders --log mysql://db/escapement
      escapement pipeline lag --for 1h --log mysql://db/escapement
      escapement pipeline archive --to s3a://bucket/archive --log mysql://db/escapement
      escapement pipeline audit --log mysql://db/escapement
      escapement pipeline rebuild --data /var/lib/escapement
    """
