"""The command line of the simulation: ``make simulate SEEDS=1000 FIRST=1``.

``WORKLOAD=exact`` runs one broker, which is compared with an exact model. A seed that fails is
printed with the command that runs it again, in the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections import Counter

from simulation.exact import run as exact
from simulation.planted import BUGS, planted
from simulation.report import Report
from simulation.run import DAYS, run


def main() -> int:
    """Run the seeds; return 1 if one of them found a violation."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--workload", choices=["cluster", "exact"], default="cluster")
    parser.add_argument("--days", type=float, default=DAYS, help="virtual days of a cluster")
    parser.add_argument("--steps", type=int, default=exact.STEPS, help="steps of an exact run")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    options = parser.parse_args()
    began_s = time.monotonic()
    totals: Counter[str] = Counter()
    failed: list[int] = []
    for seed in range(options.first, options.first + options.seeds):
        with contextlib.nullcontext() if options.bug is None else planted(options.bug):
            if options.workload == "exact":
                report = exact.run(seed, options.steps)
            else:
                report = run(seed, options.days)
        if report.violations:
            failed.append(seed)
            _print_failure(report, options.workload)
        _count(totals, report)
        seconds = time.monotonic() - began_s
        print(f"seed {seed}: {_summary(totals, seconds)}, {len(failed)} failed", flush=True)
    if failed:
        print(f"FAILED: seeds {' '.join(map(str, failed))}")
    return int(bool(failed))


def _print_failure(report: Report, workload: str) -> None:
    again = f"make simulate WORKLOAD={workload} SEEDS=1 FIRST={report.seed}"
    print(f"seed {report.seed} FAILED; {again} repeats it")
    for line in report.violations[:20]:
        print(f"  {line}")


def _count(totals: Counter[str], report: Report) -> None:
    totals["seeds"] += 1
    totals["days"] += round(report.days)
    totals["operations"] += report.operations
    totals["faults"] += report.faults
    totals["shared"] += report.shared


def _summary(totals: Counter[str], seconds: float) -> str:
    return (
        f"{totals['seeds'] / seconds:.2f} seeds/s, {totals['days']} virtual days,"
        f" {totals['operations']} operations, {totals['faults']} faults,"
        f" {totals['shared']} transactions of several bundles"
    )


if __name__ == "__main__":
    sys.exit(main())
