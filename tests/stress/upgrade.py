"""An upgrade under load: ``make upgrade COMMIT=…``. Brokers of two versions share a MariaDB.

A broker with the source of an earlier commit runs under the load of the stress test. One with the
working tree joins it, and migrates the database. Then the first one stops, and starts again with
the working tree. The order of these steps is that of docs/guides/operations.md. With --kill, the
first one is killed instead of stopped. At the end the promises are checked.
"""

from __future__ import annotations

import argparse
import math
import random
import secrets
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

from stress.run import judge, traffic
from stress.troubles import CUT_OFF_S
from stress.world import World
from support.commits import source_of
from support.database.servers import private_server
from support.processes.broker import BrokerProcess, until

# How long traffic goes on between two steps, by default.
STEP_S: Final = 15.0


class VersionedBroker(BrokerProcess):
    """A broker process with the source of some commit."""

    def __init__(self, data: Path, log_url: str, source: Path, *options: str) -> None:
        super().__init__(data, log_url, *options)
        self.run_with(source)

    def run_with(self, source: Path) -> None:
        """Use this source from the next start on."""
        self.environment = {"PYTHONPATH": str(source)}  # type: ignore[misc]


async def replace(
    world: World, old: VersionedBroker, new: VersionedBroker, now: Path, step_s: float, kills: bool
) -> None:
    """Let the new broker join, end the old one, and start it again with the working tree."""
    await trio.sleep(step_s)
    new.launch()
    await until(new.ready, timeout_s=60)
    joined_s = world.history.now_s()
    print(f"a broker of the working tree has joined {world.history.counts}", flush=True)
    await trio.sleep(step_s)
    began_s = world.history.now_s()
    # Bundles may go to their home half a minute after a broker has joined.
    world.history.trouble(joined_s, began_s + CUT_OFF_S)
    if kills:
        old.kill()
    else:
        assert await trio.to_thread.run_sync(old.stop) == 0
    print("the broker of the commit has ended", flush=True)
    await trio.sleep(step_s)
    old.run_with(now)
    old.launch()
    await until(old.ready, timeout_s=60)
    back_s = world.history.now_s()
    await trio.sleep(step_s)
    world.history.trouble(began_s - CUT_OFF_S, world.history.now_s() + CUT_OFF_S)
    world.history.trouble(back_s, math.inf)
    for broker in (old, new):
        assert broker.running, broker.complaints()


def upgrade(commit: str, step_s: float, seed: int, kills: bool, bundles: int) -> int:
    """Run the upgrade; return the number of broken promises."""
    # A commit from before there were bundles does not know the option.
    options = ("--bundles", str(bundles)) if bundles > 1 else ()
    directory = Path(tempfile.mkdtemp(prefix="escapement-upgrade-"))
    print(f"from {commit}, seed {seed}, in {directory}", flush=True)
    now = Path(__file__).parents[2] / "src"
    with ExitStack() as stack:
        before = stack.enter_context(source_of(commit))
        database = stack.enter_context(private_server())
        database.admin("CREATE DATABASE upgrade CHARACTER SET utf8mb4")
        url = database.url("upgrade")
        old = VersionedBroker(directory / "old", url, before, *options)
        new = VersionedBroker(directory / "new", url, now, *options)
        for broker in (old, new):
            stack.callback(broker.remove)
        addresses = f"escapement://127.0.0.1:{old.port},127.0.0.1:{new.port}"
        world = World(addresses, random.Random(seed), longest_ms=10_000)
        old.start()

        async def steps() -> None:
            await replace(world, old, new, now, step_s, kills)

        trio.run(traffic, world, steps)
        for broker in (old, new):
            assert broker.stop() == 0
    return judge(world, (), directory, shows_all=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with the options of the command line; return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="make upgrade", description=__doc__)
    parser.add_argument("commit", help="the commit of the earlier version")
    parser.add_argument("--step", type=float, default=STEP_S, help="seconds between two steps")
    parser.add_argument("--seed", type=int, help="of the clients (default: random)")
    parser.add_argument("--bundles", type=int, default=1, help="with a long step, both have some")
    parser.add_argument("--kill", action="store_true", help="kill the broker of the commit")
    options = parser.parse_args(arguments)
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    return int(upgrade(options.commit, options.step, seed, options.kill, options.bundles) > 0)


if __name__ == "__main__":
    sys.exit(main())
