"""A broker in its own process, which tests start, stop, kill and freeze.

The process runs ``escapement serve``, as an operator would, in a fork (``forked.py``). If a test
needs a limit that the command has no option for, such as a short lease, ``limited_broker.py`` runs
the same server.
The port stays the same at every start, so clients reconnect.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import trio

import escapement
from escapement.failpoints import VARIABLE
from support.database.servers import free_port
from support.processes.forked import ForkedProcess

START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 60
# Settings of clients that reconnect soon, and that tolerate a busy machine.
PATIENT: Final = escapement.Settings(
    connect_timeout_s=30.0,
    request_timeout_s=60.0,
    heartbeat_timeout_s=60.0,
    reconnect_first_s=0.05,
    reconnect_longest_s=0.2,
)


class BrokerProcess:
    """One broker on one data directory. ``start`` works again after any kind of end."""

    # The script that runs a broker with limits.
    runner = Path(__file__).with_name("limited_broker.py")
    # What that script needs besides the environment of this process.
    environment: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        data: Path,
        log_url: str | None = None,
        *options: str,
        limits: dict[str, Any] | None = None,
        tables: Sequence[str] = (),
        outboxes: Sequence[str] = (),
    ) -> None:
        """Choose ``options`` of `escapement serve`, or ``limits`` that ``runner`` sets.

        ``tables`` and ``outboxes`` are the databases with these of a broker with limits.
        """
        assert not (options and limits)
        assert limits or not (tables or outboxes)
        self.data = data
        self.port = free_port()
        self.starts = 0
        self.failpoints = ""  # of the next start; see ``escapement.failpoints``
        self.clock_ahead_ms = 0  # of a broker with limits: how far its wall clock is ahead
        self._log_url = log_url
        self._options = options
        self._limits = limits
        self._tables = tables
        self._outboxes = outboxes
        self._process: ForkedProcess | None = None
        data.mkdir(parents=True, exist_ok=True)
        self._said = data.with_name(data.name + ".out")
        self._complained = data.with_name(data.name + ".err")

    @property
    def url(self) -> str:
        return f"escapement://127.0.0.1:{self.port}"

    @property
    def index(self) -> Path:
        return self.data / "index"

    @property
    def process(self) -> ForkedProcess:
        assert self._process is not None, "never started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # -- start and stop ----------------------------------------------------------

    def launch(self) -> None:
        """Start the process and return at once; ``ready`` becomes true when it serves."""
        assert not self.running
        if self._limits is None:
            program = ["-m", "escapement", "serve", *self._options]
            program += ["--data", str(self.data), "--listen", f"127.0.0.1:{self.port}"]
            program += ["--log", self._log_url] if self._log_url else []
        else:
            asked = {
                "data": str(self.data),
                "log_url": self._log_url,
                "port": self.port,
                "limits": self._limits,
                "tables": self._tables,
                "outboxes": self._outboxes,
                "clock_ahead_ms": self.clock_ahead_ms,
            }
            program = [str(self.runner), json.dumps(asked)]
        self.starts += 1
        with self._complained.open("ab") as err:
            err.write(f"-- start {self.starts} --\n".encode())
        self._said.write_bytes(b"")  # the process may start later, and ``ready`` reads this
        environment = {**os.environ, **self.environment, VARIABLE: self.failpoints}
        self._process = ForkedProcess(program, environment, self._said, self._complained)

    def ready(self) -> bool:
        """Return whether the broker has printed that it accepts connections."""
        return b"ready" in self._said.read_bytes()

    def start(self) -> float:
        """Start the process, wait until it accepts connections, and return the seconds."""
        began = time.monotonic()
        self.launch()
        while not self.ready():
            if not self.running or time.monotonic() > began + START_TIMEOUT_S:
                raise RuntimeError(f"the broker did not start:\n{self.complaints()}")
            time.sleep(0.01)
        return time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.terminate()
        return self.process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Send SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def remove(self) -> None:
        """End the process, in whatever state it is."""
        if self.running:
            self.process.kill()
            self.process.wait(STOP_TIMEOUT_S)

    # -- inspection ---------------------------------------------------------------

    def complaints(self) -> str:
        """Return the last 60 lines of its stderr."""
        return "\n".join(self._complained.read_text(errors="replace").splitlines()[-60:])

    def lines(self, words: str) -> list[str]:
        """Return the lines of its stderr that have these words, of all of its starts."""
        if not self._complained.exists():
            return []
        lines = self._complained.read_text(errors="replace").splitlines()
        return [line for line in lines if words in line]

    def rss_bytes(self) -> int:
        """Return its resident memory."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def broker_process(
    data: Path,
    log_url: str | None = None,
    *options: str,
    limits: dict[str, Any] | None = None,
    tables: Sequence[str] = (),
) -> Iterator[BrokerProcess]:
    """Start a broker, and end its process afterwards."""
    broker = BrokerProcess(data, log_url, *options, limits=limits, tables=tables)
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()


async def until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    """Poll a condition, such as one outside of this process."""
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 (the condition lies outside of this process)
            await trio.sleep(0.02)


async def until_it_takes_over(broker: BrokerProcess) -> None:
    """Start a process, and wait until it has taken a bundle from another process."""
    broker.start()
    await until(lambda: "the broker owns the log" in broker.complaints())
