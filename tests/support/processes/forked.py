"""Python programs in processes of their own, forked from one that has imported the broker.

Importing the broker takes most of the time in which its process starts, and tests start hundreds of
them. So the first program starts a *fork server* (``multiprocessing.forkserver``), which imports
the broker and then only waits. Each program is a fork of it: a real process with its own session,
environment and files, whose main module runs as after a start of Python. In the list of processes
it has the command line of the fork server.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_CONTEXT: Final = multiprocessing.get_context("forkserver")
# ``__main__`` must be first: otherwise each fork would import the main module of the test run.
_CONTEXT.set_forkserver_preload(["__main__", "escapement.cli.operation.serve"])
# The longest run of a program of `run_forked`.
TIMEOUT_S: Final = 120


class ForkedProcess:
    """A process that runs a program, with the methods of ``subprocess.Popen`` that tests need."""

    def __init__(
        self, program: Sequence[str], environment: Mapping[str, str], out: Path, err: Path
    ) -> None:
        """Start it.

        Args:
          program: the file of a script, or ``-m`` and the name of a module, and then its arguments.
          environment: all variables of its environment.
          out: the file for its stdout, which is emptied.
          err: the file for its stderr, which is appended to.
        """
        self._process = _CONTEXT.Process(
            target=_run, args=(tuple(program), dict(environment), str(out), str(err)), daemon=True
        )
        self._lock = threading.Lock()
        self._process.start()
        assert self._process.pid is not None
        self.pid: Final = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code; negative: the number of the signal that ended it; None: it runs."""
        with self._lock:  # only one thread may read the exit code
            return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None if the process runs."""
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        """Wait for the end, and return the exit code.

        Raises:
          subprocess.TimeoutExpired: the process still runs.
        """
        multiprocessing.connection.wait([self._process.sentinel], timeout_s)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def run_forked(*program: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its exit code and what it printed."""
    with tempfile.TemporaryDirectory(prefix="escapement-forked-") as directory:
        out, err = (Path(directory) / name for name in ("out", "err"))
        code = ForkedProcess(program, environment, out, err).wait(TIMEOUT_S)
        return subprocess.CompletedProcess(program, code, out.read_text(), err.read_text())


def _run(program: Sequence[str], environment: Mapping[str, str], out: str, err: str) -> None:
    """Run the program in this process, a new fork."""
    os.setsid()
    for number, path, how in ((1, out, os.O_TRUNC), (2, err, os.O_APPEND)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    if program[0] == "-m":
        sys.argv = list(program[1:])
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(program)
        runpy.run_path(program[0], run_name="__main__")
