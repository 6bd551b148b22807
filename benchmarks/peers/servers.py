"""Private servers of the peers: Redis, RabbitMQ and beanstalkd, with their data on disk.

Each server has its own directory and port. Each confirms a change after it is flushed to disk, as
escapement does. Their packages come from Debian (``install``).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.database.servers import SERVER_PATH, MysqlServer, free_port, private_server

__all__ = ["MysqlServer", "private_server"]

# The packages of Debian, and a program of each.
PACKAGES = {
    "redis-server": "redis-server",
    "rabbitmq-server": "rabbitmq-server",
    "beanstalkd": "beanstalkd",
    "nodejs": "node",
    "npm": "npm",
}
RABBITMQ = Path("/usr/lib/rabbitmq/bin")
START_TIMEOUT_S = 60


def install() -> None:
    """Install the packages that are missing. This needs root.

    Debian starts the servers as services. The comparison does not use these services.
    """
    missing = [package for package, program in PACKAGES.items() if not find(program)]
    if missing:
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for words in (["update", "-q"], ["install", "-y", "--no-install-recommends", *missing]):
            subprocess.run(
                ["apt-get", *words], env=environment, stdout=subprocess.DEVNULL, check=True
            )


def find(program: str) -> str | None:
    return shutil.which(program, path=SERVER_PATH)


class Server:
    """A running server: its port, and the processor time of its processes."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self._process = process

    def cpu_s(self) -> float:
        """Return the processor seconds of the process and of its descendants that run."""
        children: dict[int, list[int]] = {}
        used: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(path.name))
                used[int(path.name)] = int(fields[11]) + int(fields[12])
        ticks, found = 0, [self._process.pid]
        while found:
            pid = found.pop()
            ticks += used.get(pid, 0)
            found += children.get(pid, [])
        return ticks / os.sysconf("SC_CLK_TCK")


# Runs a server in a directory until the ``with`` block ends.
Start = Callable[[Path], contextlib.AbstractContextManager[Server]]


@contextlib.contextmanager
def redis(home: Path) -> Iterator[Server]:
    """Run Redis with an append-only file that is flushed before each answer."""
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(home), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    with running(["redis-server", *options], home, port) as server:
        yield server


@contextlib.contextmanager
def beanstalkd(home: Path) -> Iterator[Server]:
    """Run beanstalkd with a log that is flushed at each change."""
    port = free_port()
    options = ["-l", "127.0.0.1", "-p", str(port), "-b", str(home), "-f", "0"]
    with running(["beanstalkd", *options], home, port) as server:
        yield server


@contextlib.contextmanager
def rabbitmq(home: Path) -> Iterator[Server]:
    """Run RabbitMQ with its own name, cookie and port mapper (epmd)."""
    port, mapper, distribution = free_port(), free_port(), free_port()
    configuration = home / "rabbitmq.conf"
    configuration.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n", "utf-8")
    (home / "plugins").write_text("[].\n", "utf-8")
    environment = {
        "HOME": str(home),
        "ERL_EPMD_PORT": str(mapper),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"peer{port}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
        "RABBITMQ_CONFIG_FILE": str(configuration),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
    }
    try:
        with running([str(RABBITMQ / "rabbitmq-server")], home, port, environment) as server:
            yield server
    finally:
        subprocess.run(
            ["epmd", "-kill"],
            env=dict(os.environ, **environment),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


@contextlib.contextmanager
def running(
    command: list[str], home: Path, port: int, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """Run a server that accepts connections on ``port``, until the ``with`` block ends."""
    program = find(command[0])
    if program is None:
        raise SystemExit(f"{command[0]} is not installed: run again with --install")
    with (home / "output").open("ab") as output:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=home,
            env=dict(os.environ, **(environment or {})),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: accepts(port) or process.poll() is not None)
        if process.poll() is not None:
            raise SystemExit(f"{program} has ended:\n{(home / 'output').read_text()}")
        yield Server(port, process)
    finally:
        process.terminate()
        process.wait(START_TIMEOUT_S)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise SystemExit("a server did not start")
        time.sleep(0.05)
