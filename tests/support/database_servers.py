"""A private MariaDB or MySQL server for tests: started, stopped, killed, frozen.

It has its own data directory, socket and port, and the default durability. Nothing
of the machine's own server or its configuration is touched.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 60
# Below those that systems give to connections that go out (from 32768 or 49152 on).
PORTS = range(15_000, 32_000)
# Room for the largest blobs of the contract suite.
SERVER_OPTIONS = ("--max-allowed-packet=64M", "--skip-name-resolve", "--bind-address=127.0.0.1")
# In the clear, so that a proxy between can see what it is to lose.
BRAND_OPTIONS = {
    "mariadb": ("--skip-ssl",),
    "mysql": ("--tls-version=", "--mysqlx=OFF"),
}
# Debian keeps servers where an ordinary user's PATH does not look.
SERVER_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class NoServerBinary(Exception):
    """Is raised when neither mariadbd nor mysqld is installed."""


def _find(*names: str) -> str | None:
    for name in names:
        if path := shutil.which(name, path=SERVER_PATH):
            return path
    return None


def _brand_of(binary: str) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return "mariadb" if "mariadb" in said.stdout.lower() else "mysql"


class MysqlServer:
    """One server on one data directory; ``start`` again after any kind of end."""

    def __init__(self, *options: str) -> None:
        """``options`` are added to the server's command line."""
        binary = _find("mariadbd", "mysqld")
        if binary is None:
            raise NoServerBinary(
                "no MariaDB or MySQL server is installed: apt-get install mariadb-server, "
                "or set ESCAPEMENT_TEST_MYSQL_URL=mysql://user:password@host:port/database"
            )
        self._binary = binary
        self._brand = _brand_of(binary)
        self._options = options
        # Short, because a socket's path must be.
        self.home = Path(tempfile.mkdtemp(prefix="escapement-db-"))
        self.socket = self.home / "socket"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.home / "log"
        self._install()

    # -- life ------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Return when the server takes connections."""
        assert not self.running
        command = [self._binary, *self._where(), f"--socket={self.socket}", f"--port={self.port}"]
        command += [f"--pid-file={self.home / 'pid'}", *SERVER_OPTIONS]
        command += [*BRAND_OPTIONS[self._brand], *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(self.socket)) == 0:
                    return
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{self._tail()}")
            time.sleep(0.02)

    def restart_with(self, *options: str) -> None:
        """Start it once more with other options; it was stopped."""
        self._options = options
        self.start()

    def stop(self) -> None:
        """A clean shutdown."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash of the server would be."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and answers none of them."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # each of its threads has stopped

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restore(self) -> None:
        """Running and answering again, whatever a test did to it."""
        if self.running:
            self.resume()
        else:
            self.start()

    def remove(self) -> None:
        """The end of it: process and data."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    # -- use -------------------------------------------------------------------

    def url(self, database: str, user: str = "root", password: str = "", port: int = 0) -> str:
        """The URL of a database on it; ``port`` goes by way of a proxy."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"mysql://{user}{secret}@127.0.0.1:{port or self.port}/{database}"

    def admin(self, sql: str) -> tuple[Any, ...]:
        """One statement as root, on a connection of its own."""
        # A socket has no use for TLS, whose certificates take some 50 ms to read each time.
        local = {"unix_socket": str(self.socket), "user": "root", "ssl_disabled": True}
        return run_sql(local, sql)

    def processor_s(self) -> float:
        """Processor seconds that it has used since it was started."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_bytes(self) -> int:
        """What it has had from its disk since it was started."""
        assert self._process is not None
        said = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in said if line.startswith("read_bytes"))

    # -- set-up ----------------------------------------------------------------

    def _where(self) -> list[str]:
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        # Its own place for temporary tables: a server that was killed leaves some behind.
        temporary = self.home / "tmp"
        temporary.mkdir(exist_ok=True)
        return [
            "--no-defaults",
            f"--datadir={self.home / 'data'}",
            f"--tmpdir={temporary}",
            *as_root,
        ]

    def _install(self) -> None:
        installer = _find("mariadb-install-db", "mysql_install_db")
        if self._brand == "mariadb" and installer is not None:
            options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
            command = [installer, *self._where(), *options]
        else:
            command = [self._binary, *self._where(), "--initialize-insecure"]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            shutil.rmtree(self.home, ignore_errors=True)
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


@dataclass(frozen=True)
class SqlServer:
    """A server as far as SQL reaches it: private, or the one the environment names."""

    url: Callable[[str], str]  # of a database on it
    admin: Callable[[str], tuple[Any, ...]]  # runs one statement


def run_sql(connect: dict[str, Any], sql: str) -> tuple[Any, ...]:
    """One statement on a connection of its own; its rows."""
    with contextlib.closing(pymysql.connect(autocommit=True, **connect)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchall())


def free_port() -> int:
    """A port that stays free while a server is down: connections that go out take others."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextlib.contextmanager
def private_server(*options: str) -> Iterator[MysqlServer]:
    """A started server that is gone afterwards."""
    server = MysqlServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.remove()
