"""The cost of a node with many idle bundles, on a MariaDB server of its own.

    python benchmarks/idle_bundles.py [--bundles 1,16,64] [--seconds 60] [--starts 3]

The script starts `escapement serve` with a new database, and several times more with the database
as it is then. It prints the seconds from the start of the last process until it serves. The process
stays idle, and fifteen seconds later the script measures the processor time of the broker and of
the server, the statements that the server gets, the connections, and the memory. Last it stops the
broker.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from database import add_options, database

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.database.servers import MysqlServer
from support.processes.processor_time import processor_time

# Until the first rounds of all upkeep are over.
WARM_UP_S: Final = 15.0
STOP_TIMEOUT_S: Final = 60


def start(server: MysqlServer, data: Path, bundles: int) -> subprocess.Popen[str]:
    """Start a broker process, and return it when it serves."""
    options = ["--data", str(data), "--log", server.url("log"), "--bundles", str(bundles)]
    command = [sys.executable, "-m", "escapement", "serve", *options, "--listen", "127.0.0.1:0"]
    with data.with_name("err").open("ab") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    assert process.stdout is not None
    if "ready" not in process.stdout.readline():
        raise RuntimeError(data.with_name("err").read_text())
    return process


def stop(process: subprocess.Popen[str]) -> float:
    """Stop a broker process. Return the seconds that it took."""
    began_s = time.perf_counter()
    process.terminate()
    assert process.wait(STOP_TIMEOUT_S) == 0
    return time.perf_counter() - began_s


def status(server: MysqlServer, name: str) -> int:
    return int(server.admin(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])


def memory_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure(server: MysqlServer, data: Path, bundles: int, seconds: float, starts: int) -> None:
    """Print the figures for a number of bundles."""
    server.admin("CREATE DATABASE log")
    for _ in range(starts):
        stop(start(server, data, bundles))
    began_s = time.perf_counter()
    process = start(server, data, bundles)
    took_s = time.perf_counter() - began_s
    time.sleep(WARM_UP_S)
    began_s, used, asked = time.perf_counter(), processor_time(), status(server, "Queries")
    time.sleep(seconds)
    passed_s = time.perf_counter() - began_s
    asked_per_s = (status(server, "Queries") - asked) / passed_s
    shares = {kind: (one - used[kind]) / passed_s for kind, one in processor_time().items()}
    connections = status(server, "Threads_connected") - 1  # without the one that asks
    print(f"{bundles} bundles: ready after {took_s:.2f} s, {memory_mib(process.pid):.0f} MiB")
    print(f"  broker {shares['broker']:.1%} of a core, database {shares['database']:.1%}")
    print(f"  {asked_per_s:.1f} statements a second, {connections} connections")
    print(f"  stopped in {stop(process):.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundles", default="1,16,64", help="numbers, with commas")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--starts", type=int, default=3)
    add_options(parser)
    options = parser.parse_args()
    for bundles in map(int, options.bundles.split(",")):
        with database(options) as server, tempfile.TemporaryDirectory() as directory:
            measure(server, Path(directory) / "data", bundles, options.seconds, options.starts)


if __name__ == "__main__":
    main()
