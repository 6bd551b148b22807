"""The broker under test: a process that the bench starts, or a running broker named by its URL.

The bench stops the process that it started. If no data directory is given, the process has a
temporary one, which is deleted at the end. A broker named by its URL is never stopped, and its
memory and processor time are not measured. Clients reach the broker over TCP in both cases.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from escapement.errors import StorageError

# The longest start: rebuilding a large index takes minutes, but a start that hangs must fail.
_START_TIMEOUT_S: Final = 600.0
_STOP_TIMEOUT_S: Final = 60.0
# The error of a failed start shows this many lines from the end of the broker's log file.
_LOG_LINES: Final = 15
# The line that `escapement serve` prints when it accepts connections.
_READY: Final = re.compile(r" ready on ([^ ,]+),")


class Host:
    """The broker under test: its address, and the control of its process."""

    def __init__(self, data: Path | None, log_url: str | None, url: str = "") -> None:
        """Describe a broker.

        Args:
          data: the data directory of a broker to start; None for a running broker.
          log_url: the URL of the started broker's log in MySQL; None for SQLite in ``data``.
          url: the URL of a running broker.
        """
        self._data = data
        self._log_url = log_url
        self._process: subprocess.Popen[bytes] | None = None
        self.url = url

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start the broker. Return the seconds until it accepted connections.

        Raises:
          StorageError: if the broker does not start. The error shows the end of its log file.
        """
        assert self._process is None
        assert self._data is not None, "a broker named by its URL has no data directory"
        environment = os.environ | {
            "ESCAPEMENT_DATA": str(self._data),
            # Keep the port, so that clients find the broker after a restart.
            "ESCAPEMENT_LISTEN": self.url.removeprefix("escapement://") or "127.0.0.1:0",
        }
        environment.pop("ESCAPEMENT_LOG", None)
        if self._log_url is not None:
            environment["ESCAPEMENT_LOG"] = self._log_url
        began_s = trio.current_time()
        self._process = self._spawn(environment)
        assert self._process.stdout is not None
        with trio.move_on_after(_START_TIMEOUT_S):
            said = await trio.to_thread.run_sync(
                self._process.stdout.readline, abandon_on_cancel=True
            )
            if ready := _READY.search(said.decode()):
                self.url = f"escapement://{ready[1]}"
                return trio.current_time() - began_s
        self.kill()
        raise StorageError(f"the broker did not start:\n{self._log_tail()}")

    def _spawn(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "escapement", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the bench, which stops the broker
            )

    async def stop(self) -> None:
        """Stop the started broker with SIGTERM. It writes its index from memory to disk first."""
        if self._process is not None:
            self._process.terminate()
            await trio.to_thread.run_sync(self._process.wait, _STOP_TIMEOUT_S)
            self._forget()

    def kill(self) -> None:
        """Kill the started broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def lose_index(self) -> None:
        """Delete the delayed index of the broker, which is not running."""
        assert self._process is None
        assert self._data is not None, "a broker named by its URL has no data directory"
        shutil.rmtree(self._data / "index")

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def resident_bytes(self) -> tuple[int, int]:
        """Return the resident memory of the started broker: its current size, and its peak."""
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.process_id}/status").read_text().splitlines()
            if ":" in line
        )
        return _bytes(fields["VmRSS"]), _bytes(fields["VmHWM"])

    def cpu_seconds(self) -> float | None:
        """Return the processor time of the started broker; None for a broker named by its URL."""
        if self._process is None:
            return None
        # The fields after the command's name, which is in parentheses; see proc(5).
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def _log_file(self) -> Path:
        assert self._data is not None, "a broker named by its URL has no data directory"
        return self._data / "broker.log"

    def _log_tail(self) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


@asynccontextmanager
async def host(broker: str | None, data: Path | None, log_url: str | None) -> AsyncIterator[Host]:
    """Yield the broker at the URL ``broker``; if it is None, start one for the ``with`` block."""
    if broker is not None:
        yield Host(None, None, broker)
        return
    directory = data or Path(tempfile.mkdtemp(prefix="escapement-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    started = Host(directory, log_url)
    try:
        await started.start()
        yield started
        await started.stop()
    finally:
        started.kill()
        if data is None:
            shutil.rmtree(directory, ignore_errors=True)


def _bytes(field: str) -> int:
    return int(field.split()[0]) * 1024
