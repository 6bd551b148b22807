"""A private MariaDB or MySQL server, which tests start, stop, kill and freeze.

It has its own data directory, socket and port, and the default durability. It does not touch a
server of the machine or its configuration.
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
# Below the ephemeral ports of outgoing connections, which begin at 32768 or 49152.
PORTS = range(15_000, 32_000)
# Room for the largest blobs of the contract suite.
SERVER_OPTIONS = ("--max-allowed-packet=64M", "--skip-name-resolve", "--bind-address=127.0.0.1")
# Without encryption, so a proxy can recognise the message that it must lose.
BRAND_OPTIONS = {
    "mariadb": ("--skip-ssl",),
    "mysql": ("--tls-version=", "--mysqlx=OFF", "--secure-file-priv=NULL"),
}
# MySQL creates root for "localhost" only, which is not 127.0.0.1 without name resolution.
ROOT_ON_TCP = """\
CREATE USER root@127.0.0.1;
GRANT ALL ON *.* TO root@127.0.0.1 WITH GRANT OPTION;
"""
# Debian installs servers in directories that are not on the PATH of ordinary users.
SERVER_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class NoServerBinary(Exception):
    """Raised when neither mariadbd nor mysqld is installed."""


def _find(*names: str) -> str | None:
    for name in names:
        if path := shutil.which(name, path=SERVER_PATH):
            return path
    return None


def _brand_of(binary: str) -> str:
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return "mariadb" if "mariadb" in said.stdout.lower() else "mysql"


class MysqlServer:
    """One server on one data directory. ``start`` works again after any kind of end."""

    def __init__(self, *options: str, directory: Path | None = None) -> None:
        """Install a server.

        Args:
          options: extend its command line.
          directory: where its directory is; None: in the one for temporary files.
        """
        binary = _find("mariadbd", "mysqld")
        if binary is None:
            raise NoServerBinary(
                "no MariaDB or MySQL server is installed: apt-get install mariadb-server, "
                "or set ESCAPEMENT_TEST_MYSQL_URL=mysql://user:password@host:port/database"
            )
        self._binary = binary
        self._brand = _brand_of(binary)
        self._options = options
        # Short, because the length of a socket's path is limited.
        self.home = Path(tempfile.mkdtemp(prefix="escapement-db-", dir=directory))
        self.socket = self.home / "socket"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self.home / "log"
        self._install()

    # -- start and stop --------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
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
        """Start a stopped server with other options."""
        self._options = options
        self.start()

    def stop(self) -> None:
        """Shut the server down cleanly."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Send SIGKILL, as a crash of the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)

    def pause(self) -> None:
        """Send SIGSTOP: the server keeps its connections and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # each of its threads has stopped

    def resume(self) -> None:
        """Send SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restore(self) -> None:
        """Make the server run and answer again after any test."""
        if self.running:
            self.resume()
        else:
            self.start()

    def remove(self) -> None:
        """End the process and delete its data."""
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    # -- use -------------------------------------------------------------------

    def url(self, database: str, user: str = "root", password: str = "", port: int = 0) -> str:
        """Return the URL of a database; ``port`` may name a proxy."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"mysql://{user}{secret}@127.0.0.1:{port or self.port}/{database}"

    def admin(self, sql: str) -> tuple[Any, ...]:
        """Run one statement as root, on its own connection."""
        # A socket needs no TLS, whose certificates take some 50 ms to read each time.
        local = {"unix_socket": str(self.socket), "user": "root", "ssl_disabled": True}
        return run_sql(local, sql)

    def processor_s(self) -> float:
        """Return the processor seconds used since the start."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def read_bytes(self) -> int:
        """Return the bytes read from disk since the start."""
        assert self._process is not None
        said = Path(f"/proc/{self._process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in said if line.startswith("read_bytes"))

    # -- set-up ----------------------------------------------------------------

    def _where(self) -> list[str]:
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        # Its own directory for temporary tables, because a killed server leaves some behind.
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
            statements = self.home / "init.sql"
            statements.write_text(ROOT_ON_TCP)
            options = ["--initialize-insecure", f"--init-file={statements}"]
            command = [self._binary, *self._where(), *BRAND_OPTIONS[self._brand], *options]
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
    """A server for SQL only: the private one, or the one that the environment names."""

    url: Callable[[str], str]  # returns the URL of a database
    admin: Callable[[str], tuple[Any, ...]]  # runs one statement


def run_sql(connect: dict[str, Any], sql: str) -> tuple[Any, ...]:
    """Run one statement on its own connection and return its rows."""
    with contextlib.closing(pymysql.connect(autocommit=True, **connect)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return tuple(cursor.fetchall())


def free_port() -> int:
    """Return a free port. Outgoing connections do not take it while a server is down."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@contextlib.contextmanager
def private_server(*options: str, directory: Path | None = None) -> Iterator[MysqlServer]:
    """Start a server, and remove it afterwards. See ``MysqlServer`` for the arguments."""
    server = MysqlServer(*options, directory=directory)
    try:
        server.start()
        yield server
    finally:
        server.remove()
