"""The outcome of a measurement: its runs and their medians, as a table or as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from escapement.bench.tally import Lateness, Tally

Figure = int | float


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run. Figures that were not measured are None."""

    messages: int
    seconds: float
    is_rate: bool = True  # whether to show ``messages`` per second
    lateness_ms: Lateness | None = None
    lost: int | None = None
    early: int | None = None
    duplicates: int | None = None
    more: dict[str, Figure] = field(default_factory=dict)  # other figures by name

    @classmethod
    def of(cls, tally: Tally, seconds: float, more: dict[str, Figure], is_rate: bool = True) -> Run:
        """Return a run with the counts and the lateness of ``tally``."""
        return cls(
            tally.received_count,
            seconds,
            is_rate,
            tally.lateness(),
            tally.lost(),
            tally.early(),
            tally.duplicates(),
            more,
        )

    @classmethod
    def counted(cls, tally: Tally, seconds: float, more: dict[str, Figure]) -> Run:
        """Return a run with the counts of ``tally``, for messages whose lateness has no meaning."""
        return cls(
            tally.received_count,
            seconds,
            lost=tally.lost(),
            early=tally.early(),
            duplicates=tally.duplicates(),
            more=more,
        )

    def figures(self) -> dict[str, Any]:
        """Return all measured figures by name."""
        known: dict[str, Any] = {"messages": self.messages, "seconds": round(self.seconds, 4)}
        if self.is_rate:
            known["messages_per_second"] = round(self.messages / self.seconds)
        if self.lateness_ms is not None:
            known["lateness_ms"] = self.lateness_ms._asdict()
        for name in ("lost", "early", "duplicates"):
            if (count := getattr(self, name)) is not None:
                known[name] = count
        return known | self.more


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one measurement: its title, engine, settings and runs."""

    title: str
    engine: str
    setting: dict[str, Any]
    runs: list[Run]

    def as_json(self) -> dict[str, Any]:
        """Return the figures of each run, and their medians over all runs.

        The counts of lost, early and duplicate messages are summed instead.
        """
        each = [run.figures() for run in self.runs]
        found: dict[str, Any] = {"bench": self.title, "engine": self.engine}
        for name in each[0]:
            values = [run[name] for run in each]
            if name == "lateness_ms":
                found[name] = {
                    part: statistics.median(value[part] for value in values) for part in values[0]
                }
            elif name in ("lost", "early", "duplicates"):
                found[name] = sum(values)
            else:
                found[name] = _median(values)
        return found | {"setting": self.setting, "runs": each, "machine": machine()}

    def as_table(self) -> Table:
        """Return the runs and their medians as a table."""
        found = self.as_json()
        setting = ", ".join(f"{name} {value}" for name, value in self.setting.items())
        about = found["machine"]
        table = Table(
            title=f"{self.title} on {self.engine}: {setting}",
            title_justify="left",
            caption=f"{about['cores']} cores, load {about['load'][0]:.1f} at the end",
        )
        table.add_column("")
        for number in range(len(self.runs)):
            table.add_column(f"run {number + 1}", justify="right")
        table.add_column("all", justify="right", style="bold")
        for name, value in found.items():
            columns = [run[name] for run in found["runs"] if name in run] + [value]
            if len(columns) == 1:
                continue  # an entry for the whole measurement, such as the engine
            if name == "lateness_ms":
                for part in value:
                    table.add_row(f"late {part}, ms", *[f"{late[part]:,.1f}" for late in columns])
            else:
                heading, show = _heading_and_format(name)
                table.add_row(heading, *map(show, columns))
        return table


def _heading_and_format(name: str) -> tuple[str, Callable[[Figure], str]]:
    """Return the heading of a figure, and a function that formats its value."""
    heading = name.replace("_", " ")
    if name.endswith("_bytes"):
        heading = f"{heading.removesuffix(' bytes')}, MiB"
        return heading, lambda value: f"{value / 1024**2:,.0f}"
    return heading, lambda value: f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"


def _median(values: list[Figure]) -> Figure:
    median = statistics.median(values)
    return int(median) if all(isinstance(value, int) for value in values) else median


def machine() -> dict[str, Any]:
    """Return a description of this machine and its current load."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
    }


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    if about.exists():
        for line in about.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
