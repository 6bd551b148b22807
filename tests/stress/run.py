"""One run: minutes of traffic and troubles, quiet until all is done, then the check."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import trio

import escapement
from escapement.errors import EscapementError
from stress.amending import amend
from stress.consuming import consume
from stress.producing import produce
from stress.redriving import list_dead_letters, redrive
from stress.rules import MINUTES_TO_SHOW_ALL, unfinished, unshown, violations
from stress.troubles import Troubles
from stress.world import KEYED, PLAIN, SUBSCRIPTIONS, World, passes, set_up
from support.database.servers import private_server
from support.processes.broker import PATIENT, BrokerProcess

ENGINES: Final = ("sqlite", "mariadb")
PROGRESS_S: Final = 10
# Time for the longest delay and the last retries after the last trouble.
TIMEOUT_S: Final = 180
LIMITS: Final = {"checkpoint_interval_s": 0.2, "sparse_generation_bytes": 256 << 10}


class StressedBroker(BrokerProcess):
    """A broker process that ``stressed_broker.py`` runs."""

    runner = Path(__file__).with_name("stressed_broker.py")


def run(minutes: float, engine: str, seed: int) -> int:
    """Run the traffic, wait until all is done, and check it.

    Returns:
      The number of broken promises and of things that the run should have shown and did not.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"escapement-stress-{engine}-"))
    print(f"{engine}, seed {seed}, {minutes:g} minutes, in {directory}", flush=True)
    with ExitStack() as stack:
        database = url = None
        if engine == "mariadb":
            database = stack.enter_context(private_server())
            database.admin("CREATE DATABASE stress")
            url = database.url("stress")
        broker = StressedBroker(directory / "broker", url, limits=LIMITS)
        stack.callback(broker.remove)
        world = World(broker, random.Random(seed))
        troubles = Troubles(world, database)
        broker.start()
        trio.run(_traffic, world, troubles, minutes * 60)
        world.stop_broker()
    _count_log(world, directory / "broker.err")
    found = list(violations(world.history))
    if found:
        (directory / "violations.txt").write_text("\n".join(found))
    else:
        shutil.rmtree(directory)
    for line in found[:20]:
        print(line)
    print(_counts(world, len(found)), flush=True)
    missing = unshown(world.history.counts, troubles.kinds)
    if missing and minutes < MINUTES_TO_SHOW_ALL:
        print(f"not shown: {', '.join(missing)}. Run for {MINUTES_TO_SHOW_ALL} minutes to show all")
        return len(found)
    for what in missing:
        print(f"FAILED: no {what} in {minutes:g} minutes, so the run proves nothing about it")
    return len(found) + len(missing)


async def _traffic(world: World, troubles: Troubles, seconds: float) -> None:
    async with escapement.connect(world.broker.url, settings=PATIENT) as client:
        await set_up(client)
        async with trio.open_nursery() as nursery:
            for name in SUBSCRIPTIONS:
                nursery.start_soon(consume, world, name)
                nursery.start_soon(consume, world, name)
            for topic in (PLAIN, KEYED):
                nursery.start_soon(produce, world, topic, f"named-{topic}")
                nursery.start_soon(produce, world, topic, None)
            nursery.start_soon(amend, world)
            nursery.start_soon(redrive, world)
            nursery.start_soon(_report, world)
            async with trio.open_nursery() as troubled:
                troubled.start_soon(troubles.run)
                await trio.sleep(seconds)
                world.over = True
            await _settle(world, client)
            nursery.cancel_scope.cancel()


async def _settle(world: World, client: escapement.Broker) -> None:
    """Wait until nothing is unfinished, or for ``TIMEOUT_S``."""
    with trio.move_on_after(TIMEOUT_S):
        while True:
            await trio.sleep(2)
            try:
                await list_dead_letters(world, client)
            except EscapementError as error:
                if not passes(error):
                    raise
                continue
            if next(unfinished(world.history), None) is None:
                break
    await trio.sleep(2)  # a delivery that breaks a promise may still come


async def _report(world: World) -> None:
    began = time.monotonic()
    while True:
        await trio.sleep(PROGRESS_S)
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"{minutes}:{seconds:02} {_counts(world, len(world.history.faults))}", flush=True)


def _counts(world: World, broken: int) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in sorted(world.history.counts.items()))
    return f"{counts}, {broken} promises broken"


def _count_log(world: World, log: Path) -> None:
    text = log.read_text(errors="replace")
    world.history.counts["generations begun"] = text.count("the log goes on in generation")
    world.history.counts["generations forgotten"] = text.count("is forgotten")
    world.history.counts["indexes built again"] = text.count("from the log:")
