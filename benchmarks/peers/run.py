"""escapement and its peers with the same small work on one machine, in one table.

    python benchmarks/peers/run.py [--install] [--rounds 3] [--scale 1.0] [--only WORD]

The peers are BullMQ on Redis, RabbitMQ (classic and quorum queues) and beanstalkd. escapement has
its log in a private MariaDB or MySQL server, or in SQLite. All of them confirm a message after it
is flushed to disk. ``--install`` installs the packages of Debian that are missing, as root. The
clients pika and bullmq are installed into a temporary directory.

The loads, with messages of 100 bytes:

- publish: single messages, with 1 or 100 without a confirmation at any time.
- workers: 1, 10 or 100 workers with a connection each. Each takes a message, acknowledges it, and
  takes the next. All messages are ready at the start.

A worker of beanstalkd and BullMQ waits until its acknowledgement is durable, as a worker of
escapement does in the rows "durable". A worker of RabbitMQ does not wait, as in the other rows of
escapement. In each round all systems run one after the other, so that other load on the machine
affects all of them. The figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import servers
from servers import MysqlServer, private_server

HERE = Path(__file__).parent


class Load(NamedTuple):
    """A load: ``parallel`` is the number of workers, or of messages without a confirmation."""

    work: str
    parallel: int
    messages: int

    @property
    def name(self) -> str:
        return f"{self.work} {self.parallel}"


LOADS = [
    Load("publish", 1, 1_000),
    Load("publish", 100, 10_000),
    Load("workers", 1, 1_000),
    Load("workers", 10, 5_000),
    Load("workers", 100, 10_000),
]


class Result(NamedTuple):
    per_second: float
    client_cpu_ms: float  # for each message
    server_cpu_ms: float  # for each message


# Runs a load, and returns its result.
Measure = Callable[[Load], Result]
# Runs a system in a directory until the ``with`` block ends, and yields how to measure it.
System = Callable[[Path], contextlib.AbstractContextManager[Measure]]


class Failed(Exception):
    """Raised when a load cannot be measured. Its client has printed the reason."""


class Clients:
    """The clients of the peers, installed in a directory."""

    def __init__(self, home: Path) -> None:
        venv.create(home / "python", with_pip=True)
        self.python = str(home / "python" / "bin" / "python")
        pip = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "pika"], check=True)
        self.script = home / "node" / "bullmq_client.mjs"
        self.script.parent.mkdir()
        self.script.write_text((HERE / "bullmq_client.mjs").read_text("utf-8"), "utf-8")
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"]
        subprocess.run(
            [*npm, "--prefix", str(self.script.parent), "bullmq", "ioredis"],
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def systems(self) -> dict[str, System]:
        """Return the peers by name."""

        def peer(start: servers.Start, command: list[str], *options: str) -> System:
            @contextlib.contextmanager
            def system(home: Path) -> Iterator[Measure]:
                with start(home) as server:
                    yield lambda load: by_client(server, command, load, options)

            return system

        rabbitmq = [self.python, str(HERE / "rabbitmq_client.py")]
        return {
            "BullMQ, Redis": peer(servers.redis, ["node", str(self.script)]),
            "RabbitMQ, classic": peer(servers.rabbitmq, rabbitmq, "classic"),
            "RabbitMQ, quorum": peer(servers.rabbitmq, rabbitmq, "quorum"),
            "beanstalkd": peer(
                servers.beanstalkd, [sys.executable, str(HERE / "beanstalkd_client.py")]
            ),
        }


def by_client(
    server: servers.Server, command: list[str], load: Load, options: tuple[str, ...]
) -> Result:
    """Run the client of a peer. It prints a line when its clock starts, and then its figures."""
    words = [load.work, server.port, load.messages, load.parallel, *options]
    with subprocess.Popen(
        [*command, *map(str, words)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        begun = process.stdout.readline()
        before_s = server.cpu_s()
        figures = process.stdout.readline()
        server_s = server.cpu_s() - before_s
    if process.returncode or begun != "begin\n":
        raise Failed
    found = json.loads(figures)
    return result(load.messages, found["seconds"], found["client_cpu_s"], server_s)


def result(messages: int, seconds: float, client_s: float, server_s: float) -> Result:
    return Result(messages / seconds, 1000 * client_s / messages, 1000 * server_s / messages)


def escapement(durable: bool, server: MysqlServer | None) -> System:
    """Return the system with its log in ``server``, or in SQLite."""

    @contextlib.contextmanager
    def system(home: Path) -> Iterator[Measure]:
        yield lambda load: by_bench(home, load, durable, server)

    return system


def by_bench(home: Path, load: Load, durable: bool, server: MysqlServer | None) -> Result:
    """Run `escapement bench`. The processor time of MariaDB is not part of the result."""
    if load.work == "publish":
        words = f"publish --batch-size 1 --window-ms 0 --in-flight {load.parallel}"
    else:
        words = f"workers --workers {load.parallel}" + (" --durable" if durable else "")
    words += f" --messages {load.messages} --runs 1 -o json"
    environment = dict(os.environ)
    environment.pop("ESCAPEMENT_LOG", None)
    database = "escapement_peers"
    if server is not None:
        environment["ESCAPEMENT_LOG"] = server.url(database)
    data = tempfile.mkdtemp(dir=home)
    command = [sys.executable, "-m", "escapement", "bench", *words.split(), "--data", data]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
    finally:
        if server is not None:
            server.admin(f"DROP DATABASE IF EXISTS {database}")
    if done.returncode:
        raise Failed
    found = json.loads(done.stdout)
    return result(
        found["messages"],
        found["seconds"],
        found["client_cpu_seconds"],
        found["broker_cpu_seconds"],
    )


def measure_all(
    systems: dict[str, System], loads: list[Load], rounds: int
) -> dict[tuple[str, str], list[Result]]:
    """Run all loads on all systems in each round. Leave out those that fail."""
    found: dict[tuple[str, str], list[Result]] = {}
    for number in range(rounds):
        for name, system in systems.items():
            with tempfile.TemporaryDirectory(prefix="peers-") as home, system(Path(home)) as run:
                for load in loads:
                    if load.work == "publish" and "durable" in name:
                        continue  # the same as without "durable"
                    try:
                        one = run(load)
                    except Failed:
                        said = "failed"
                    else:
                        found.setdefault((name, load.name), []).append(one)
                        said = f"{one.per_second:,.0f} a second"
                    print(f"round {number + 1}: {name}, {load.name}: {said}", file=sys.stderr)
    return found


def table(
    systems: dict[str, System], loads: list[Load], found: dict[tuple[str, str], list[Result]]
) -> str:
    """Return the medians: messages a second, and processor time of client and server."""
    lines = [
        "| messages a second (ms of processor time of client and server for each message) | "
        + " | ".join(load.name for load in loads)
        + " |",
        "|---" * (len(loads) + 1) + "|",
    ]
    for name in systems:
        cells = []
        for load in loads:
            results = found.get((name, load.name))
            if results is None:
                cells.append("")
                continue
            rate, client_ms, server_ms = map(statistics.median, zip(*results, strict=True))
            cells.append(f"{rate:,.0f} ({client_ms:.2f} + {server_ms:.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--install", action="store_true", help="install missing Debian packages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all message counts")
    parser.add_argument("--only", default="", help="only systems with this in their names")
    parser.add_argument("--json", type=Path, help="also write the result of each round to a file")
    options = parser.parse_args()
    if options.install:
        servers.install()
    loads = [one._replace(messages=max(100, round(one.messages * options.scale))) for one in LOADS]
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-clients-")))
        database = stack.enter_context(private_server())
        every = Clients(home).systems() | {
            "escapement, MariaDB": escapement(False, database),
            "escapement, MariaDB, durable": escapement(True, database),
            "escapement, SQLite": escapement(False, None),
            "escapement, SQLite, durable": escapement(True, None),
        }
        systems = {name: one for name, one in every.items() if options.only in name}
        found = measure_all(systems, loads, options.rounds)
    print(table(systems, loads, found))
    if options.json is not None:
        rows = [{"system": a, "load": b, "rounds": found[a, b]} for a, b in found]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
