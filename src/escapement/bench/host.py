"""The broker under test: a process started, stopped, killed and weighed, or one that runs.

Owns the process and, unless a directory is given, its data. What listens is always
reached over TCP. A broker that is only named by its URL is neither stopped nor weighed.
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

# A start that rebuilds a large index takes minutes; one that hangs must end some time.
_START_TIMEOUT_S: Final = 600.0
_STOP_TIMEOUT_S: Final = 60.0
_LOG_LINES: Final = 15
# What `escapement serve` prints when it takes connections.
_READY: Final = re.compile(r" ready on ([^ ,]+),")


class Host:
    """Where the broker is, and what may be done to it."""

    def __init__(self, data: Path | None, log_url: str | None, url: str = "") -> None:
        """A broker to start in ``data``; or, without it, the one that runs at ``url``."""
        self._data = data
        self._log_url = log_url
        self._process: subprocess.Popen[bytes] | None = None
        self.url = url

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> float:
        """Start it; returns after how many seconds it took connections.

        Raises:
          StorageError: if it does not start; the message holds the end of its log.
        """
        assert self._process is None
        assert self._data is not None, "this broker is only spoken to"
        environment = os.environ | {
            "ESCAPEMENT_DATA": str(self._data),
            # The same port again, so that clients find it after a restart.
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
                start_new_session=True,  # what interrupts the bench does not reach it first
            )

    async def stop(self) -> None:
        """A graceful end: all of its memory is on disk afterwards."""
        if self._process is not None:
            self._process.terminate()
            await trio.to_thread.run_sync(self._process.wait, _STOP_TIMEOUT_S)
            self._forget()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    def resident_bytes(self) -> tuple[int, int]:
        """Resident memory: now, and the most it ever was."""
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{self.process_id}/status").read_text().splitlines()
            if ":" in line
        )
        return _bytes(fields["VmRSS"]), _bytes(fields["VmHWM"])

    def cpu_seconds(self) -> float | None:
        """How long it has computed since its start; None if it is not ours."""
        if self._process is None:
            return None
        # The fields after the command's name, which stands in parentheses; see proc(5).
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def _log_file(self) -> Path:
        assert self._data is not None, "this broker is only spoken to"
        return self._data / "broker.log"

    def _log_tail(self) -> str:
        lines = self._log_file.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])


@asynccontextmanager
async def host(broker: str | None, data: Path | None, log_url: str | None) -> AsyncIterator[Host]:
    """The broker named by its URL; or one started for as long as the block lasts."""
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
