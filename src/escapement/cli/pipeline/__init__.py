"""`escapement pipeline`: jobs that work on the log itself, each in a file of its own."""

from __future__ import annotations

from escapement.cli.pipeline.archive import archive
from escapement.cli.pipeline.audit import audit
from escapement.cli.pipeline.forecast import forecast
from escapement.cli.pipeline.group import pipeline
from escapement.cli.pipeline.lag import lag
from escapement.cli.pipeline.rebuild import rebuild

__all__ = ["pipeline"]

for _job in (forecast, lag, archive, audit, rebuild):
    pipeline.add_command(_job)
