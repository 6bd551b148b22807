"""Processes whose tasks can be stopped and continued, as by SIGSTOP and SIGCONT.

A task belongs to the process in whose context it was started. While a process is paused, none of
its tasks takes a step. Time goes on, and everything that wakes a task in the meantime takes effect
when the process continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import trio
from trio._core import _run as scheduler


class Process:
    """A set of tasks that pause and continue together."""

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[trio.lowlevel.Task] = []

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Let all tasks go on that were to take a step meanwhile."""
        self.paused = False
        waiting, self._waiting = self._waiting, []
        runner = scheduler.GLOBAL_RUN_CONTEXT.runner
        for task in waiting:
            runner.runq.append(task)

    def hold(self, task: trio.lowlevel.Task) -> None:
        """Keep a task that is to take a step until the process continues."""
        self._waiting.append(task)


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


@contextlib.contextmanager
def pausable() -> Iterator[None]:
    """Let processes be paused in the runs of trio inside the ``with`` block."""
    usual = scheduler.Runner.reschedule

    def reschedule(self: scheduler.Runner, task: trio.lowlevel.Task, *value: object) -> None:
        usual(self, task, *value)  # type: ignore[arg-type]
        process = task.context.get(PROCESS)
        if process is not None and process.paused:
            assert self.runq.pop() is task
            process.hold(task)

    scheduler.Runner.reschedule = reschedule  # type: ignore[method-assign]
    try:
        yield
    finally:
        scheduler.Runner.reschedule = usual  # type: ignore[method-assign]
