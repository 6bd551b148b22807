"""Findings of checks, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import click

from escapement.cli.output.table import counted, print_values
from escapement.doctor.finding import Finding


def print_findings(findings: Sequence[Finding], output: str) -> int:
    """Print findings. Return the exit code of the command: 1 if one is bad, else 0."""
    bad = sum(finding.is_bad for finding in findings)
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        rows = [(one.severity.value, one.check, one.text, one.remedy) for one in findings]
        print_values(("severity", "check", "finding", "what to do"), rows, "")
        click.echo(f"\n{counted(bad, 'problem')} found." if bad else "\nNo problem found.")
    return 1 if bad else 0
