"""A gateway or a console in its own process, and requests to it.

The process runs ``escapement gateway`` or ``escapement console`` on a free port, as an operator
would.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import trio

from support.processes.forked import ForkedProcess

COMMAND: Final = (sys.executable, "-m", "escapement")
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 30
# A request waits for messages for at most a minute.
REQUEST_TIMEOUT_S: Final = 90


class HttpServerProcess:
    """One server, which has started.

    Attributes:
      url: where it is, such as ``http://127.0.0.1:40123``.
    """

    def __init__(
        self, command: str, home: Path, brokers: str, *options: str, **variables: str
    ) -> None:
        """Start it for brokers, with further options of the command and of the environment."""
        home.mkdir(parents=True, exist_ok=True)
        said, self._complained = home / f"{command}.out", home / f"{command}.err"
        for file in (said, self._complained):
            file.write_bytes(b"")
        at = ("--broker", brokers, "--listen", "127.0.0.1:0")
        program = ["-m", "escapement", command, *at, *options]
        self.process = ForkedProcess(program, {**os.environ, **variables}, said, self._complained)
        began = time.monotonic()
        while not (line := said.read_text()).endswith("\n"):
            if self.process.poll() is not None or time.monotonic() > began + START_TIMEOUT_S:
                self.remove()
                raise RuntimeError(f"the {command} did not start:\n{self.complaints()}")
            time.sleep(0.01)
        self.url = line.split()[-1]

    def client(self, topic: str = "", **options: Any) -> httpx.AsyncClient:
        """Return a client whose relative URLs begin at a topic."""
        base = f"{self.url}/v1/topics/{topic}/" if topic else self.url
        options = {"timeout": REQUEST_TIMEOUT_S, "trust_env": False} | options
        return httpx.AsyncClient(base_url=base, **options)

    def complaints(self) -> str:
        """Return its stderr."""
        return self._complained.read_text(errors="replace")

    async def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return await self.exit_code()

    async def exit_code(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        return await trio.to_thread.run_sync(self.process.wait, STOP_TIMEOUT_S)

    def remove(self) -> None:
        """End the process, in whatever state it is."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)


@contextlib.contextmanager
def gateway_process(
    home: Path, brokers: str, *options: str, **variables: str
) -> Iterator[HttpServerProcess]:
    """Start a gateway, and end its process afterwards. It must not have logged a bug."""
    with _running(HttpServerProcess("gateway", home, brokers, *options, **variables)) as server:
        yield server


@contextlib.contextmanager
def console_process(
    home: Path, brokers: str, *options: str, **variables: str
) -> Iterator[HttpServerProcess]:
    """Start a console, and end its process afterwards. It must not have logged a bug."""
    with _running(HttpServerProcess("console", home, brokers, *options, **variables)) as server:
        yield server


@contextlib.contextmanager
def _running(server: HttpServerProcess) -> Iterator[HttpServerProcess]:
    try:
        yield server
        assert "Traceback" not in server.complaints(), server.complaints()
    finally:
        server.remove()
