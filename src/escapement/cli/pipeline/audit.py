"""`escapement pipeline audit`: compare the messages in log, cursors and index."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from escapement.cli.input.options import output_option
from escapement.cli.output.table import counted, print_rows
from escapement.cli.pipeline.source import given, refusals, source_options
from escapement.pipeline.audit import AuditConfig, run
from escapement.pipeline.session import session

# The exit code of a complete audit with findings. An audit that fails exits with another code.
_FINDINGS = 3


@click.command(
    epilog="""\b
    Examples:
      escapement pipeline audit --log mysql://db/escapement
      escapement pipeline audit orders --data /var/lib/escapement --index /var/lib/escapement
      escapement pipeline audit --index /var/lib/escapement -o json

    Exits with 0 if everything adds up, with 3 if something does not, and with 1 or 2 if the
    audit failed. It changes nothing, and a broker may run meanwhile.
    """
)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--index",
    type=click.Path(),
    metavar="DIRECTORY",
    help="Data directory of the broker, to audit its delayed index too.",
)
@output_option("table", "How to print the result.")
@source_options
def audit(topics: tuple[str, ...], index: str | None, output: str, **where: str | None) -> None:
    """Recount the messages of TOPICs, or of all topics, and report what does not add up."""
    config = AuditConfig(given(topics, **where), topics, index)
    with session("audit") as spark, refusals():
        found = run(spark, config)
    if output == "json":
        click.echo(json.dumps(asdict(found)))
    else:
        rows = [asdict(one) for one in found.topics]
        print_rows(
            rows,
            ["topic", "rows", "messages", "pending", "indexed", "archived", "forgotten"],
            "there are no topics",
        )
        for finding in found.findings:
            click.echo(f"{finding.topic or 'index'}: {finding.what}")
        things = counted(len(found.findings), "thing")
        click.echo(
            f"{things} {'does' if len(found.findings) == 1 else 'do'} not add up"
            if found.findings
            else "everything adds up"
        )
    if found.findings:
        raise click.exceptions.Exit(_FINDINGS)
