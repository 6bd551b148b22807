"""The report of one run of a workload, and what surrounds every run."""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
import trio.testing

from histories.history import History
from simulation import sharing
from simulation.alarms import alarms
from support.memory_directory import memory_directory
from support.trio_order import replayed

# A run makes many objects that live as long as it. With the usual thresholds of Python, searches
# for garbage take several per cent of its time.
_GARBAGE: Final = (50_000, 20, 100)
# Other counts of the history have these deliveries and messages, too, or no client caused them.
_NO_OPERATIONS: Final = {"delivered again", "dead letters", "bundles taken", *sharing.COUNTS}


@dataclass
class Report:
    """The result of one run."""

    seed: int
    violations: list[str]
    history: History | None = None
    seconds: float = 0.0

    @property
    def days(self) -> float:
        """The virtual time in days."""
        return 0.0 if self.history is None else self.history.now_s() / 86_400

    @property
    def operations(self) -> int:
        """The number of calls of clients, and of deliveries to them."""
        if self.history is None:
            return 0
        return sum(
            self.history.counts[kind] for kind in self.history.counts.keys() - _NO_OPERATIONS
        )

    @property
    def shared(self) -> int:
        """The number of shared transactions with the groups of several bundles."""
        return 0 if self.history is None else self.history.counts[sharing.SHARED]

    @property
    def faults(self) -> int:
        return 0 if self.history is None else self.history.faults.total()


# The tasks of a run. They get its report, a directory in memory, and the clock.
Live = Callable[[Report, Path, trio.testing.MockClock], Awaitable[None]]


def report_of(live: Live, seed: int, clock: trio.testing.MockClock) -> Report:
    """Run the tasks of a workload in the order that a seed decides, and return their report."""
    began_s = time.process_time()
    root = Path(tempfile.mkdtemp(prefix="escapement-simulation-", dir=memory_directory()))
    report = Report(seed, [])
    try:
        with replayed(seed), alarms(report.violations), _rare_searches():
            trio.run(live, report, root, clock, clock=clock)
    except Exception as error:
        report.violations.append(f"a client failed: {_described(error)}")
    finally:
        shutil.rmtree(root)
        report.seconds = time.process_time() - began_s
    return report


@contextlib.contextmanager
def _rare_searches() -> Iterator[None]:
    """Search for garbage less often inside the ``with`` block."""
    usual = gc.get_threshold()
    gc.set_threshold(*_GARBAGE)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def _described(error: BaseException) -> str:
    """Return the first error of a group, and the line that raised it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r}, in {Path(last.filename).name}:{last.lineno}: {last.line}"
