"""One run: minutes of traffic and troubles, quiet until all is done, then the check."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import trio

import escapement
from escapement.errors import EscapementError
from stress.amending import amend_some
from stress.application import SHOWN, Application
from stress.cluster import cluster_of
from stress.cluster_troubles import OTHERS, ClusterTroubles
from stress.consuming import consume
from stress.producing import produce
from stress.redriving import list_all, redrive_some
from stress.shown import MINUTES_TO_SHOW_ALL, unshown
from stress.stressed import LIMITS, StressedBroker
from stress.table_clients import consume_rows, insert_rows
from stress.transacting import process_in_transactions, send_in_transactions
from stress.troubles import Troubles
from stress.world import (
    IN_TRANSACTIONS,
    KEYED,
    PLAIN,
    SUBSCRIPTIONS,
    World,
    new_history,
    passes,
    set_up,
)
from support.database.servers import private_server
from support.processes.broker import PATIENT
from support.tables.shops import Shop

ENGINES: Final = ("sqlite", "mariadb")
PROGRESS_S: Final = 10
# The database of the application.
_SHOP: Final = "shop"
# Longer than the longest delay and the last retries: if no message is finished in this time, the
# rest is lost. A busy machine may take longer for all of them.
STALLED_S: Final = 180


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
        world = World(broker.url, random.Random(seed))
        troubles = Troubles(world, broker, database)
        broker.start()
        trio.run(traffic, world, partial(troubles.run, minutes * 60))
        troubles.stop()
    return judge(world, troubles.kinds, directory, shows_all=minutes >= MINUTES_TO_SHOW_ALL)


def run_cluster(
    brokers: int,
    kills: int,
    seed: int,
    *,
    once: Sequence[str] = OTHERS,
    others: Sequence[str] = OTHERS,
    longest_ms: int = 60_000,
) -> int:
    """Run the traffic on several brokers, kill them, and check what clients saw.

    Args:
      once: the kinds of troubles that come once at the beginning.
      others: the kinds of troubles that come between kills.
      longest_ms: the longest delay of a message.

    Returns:
      The number of broken promises and of things that the run should have shown and did not.
    """
    directory = Path(tempfile.mkdtemp(prefix="escapement-cluster-"))
    print(f"{brokers} brokers, seed {seed}, {kills} kills, in {directory}", flush=True)
    chance = random.Random(seed)
    with ExitStack() as stack:
        database = stack.enter_context(private_server())
        database.admin(f"CREATE DATABASE {_SHOP}")
        application = Application(Shop(database.url(_SHOP)))
        application.install()
        history = new_history(application)
        cluster = stack.enter_context(
            cluster_of(brokers, directory, database, history, chance, shop=_SHOP)
        )
        world = World(
            cluster.url,
            chance,
            history,
            longest_ms=longest_ms,
            amend_pause_s=0.2,
            application=application,
        )
        troubles = ClusterTroubles(cluster, database, once, others)

        async def all_of_it() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.run)
                await cluster.until_served()
                await traffic(world, partial(troubles.run, kills))
                nursery.cancel_scope.cancel()

        trio.run(all_of_it)
        cluster.stop()
    return judge(world, troubles.kinds, directory, shows_all=bool(others))


def judge(world: World, kinds: Sequence[str], directory: Path, shows_all: bool) -> int:
    """Print and count the broken promises, and the events that the run lacks.

    Args:
      kinds: the kinds of troubles that the run can cause.
      directory: has the logs of the brokers. It is deleted if nothing was broken.
      shows_all: whether the run was long enough to show everything. Every run must show what
        clients do in transactions, if it has some.
    """
    _count_logs(world, directory)
    found = list(world.violations())
    if found:
        (directory / "violations.txt").write_text("\n".join(found))
    else:
        shutil.rmtree(directory)
    for line in found[:20]:
        print(line)
    print(_counts(world, len(found)), flush=True)
    in_transactions = SHOWN if world.application is not None else ()
    missing = unshown(world.history.counts, (*kinds, *in_transactions))
    if not shows_all:
        print(f"too short to show: {', '.join(missing) or 'nothing'}")
        missing = [what for what in missing if what in in_transactions]
    for what in missing:
        print(f"FAILED: no {what}, so the run proves nothing about it")
    return len(found) + len(missing)


async def traffic(
    world: World, disturb: Callable[[], Awaitable[None]], reports: bool = True
) -> None:
    """Run all clients until ``disturb`` returns, and then until all is done.

    Args:
      reports: whether to print the counts now and then.
    """
    async with escapement.connect(world.url, settings=PATIENT) as client:
        await set_up(world, client)
        async with trio.open_nursery() as nursery:
            for name in SUBSCRIPTIONS:
                nursery.start_soon(consume, world, name)
                nursery.start_soon(consume, world, name)
            for topic in (PLAIN, KEYED):
                nursery.start_soon(produce, world, topic, f"named-{topic}")
                nursery.start_soon(produce, world, topic, None)
            if world.application is not None:
                _start_application(world, world.application, nursery)
            nursery.start_soon(amend_some, world)
            nursery.start_soon(redrive_some, world)
            if reports:
                nursery.start_soon(_report, world)
            await disturb()
            world.over = True
            await _settle(world, client)
            nursery.cancel_scope.cancel()


def _start_application(world: World, application: Application, nursery: trio.Nursery) -> None:
    nursery.start_soon(send_in_transactions, world, application)
    nursery.start_soon(insert_rows, world, application)
    for _ in range(2):
        nursery.start_soon(consume_rows, world, application)
        for name in IN_TRANSACTIONS:
            nursery.start_soon(process_in_transactions, world, application, name)


async def _settle(world: World, client: escapement.Broker) -> None:
    """Wait until nothing is unfinished, or no message was finished for ``STALLED_S``."""
    least = sys.maxsize
    with trio.move_on_after(STALLED_S) as stalled:
        while True:
            await trio.sleep(2)
            try:
                await list_all(world, client)
            except EscapementError as error:
                if not passes(error):
                    raise
                continue
            if world.application is not None:
                await trio.to_thread.run_sync(world.application.look, world.history)
            left = sum(1 for _ in world.unfinished())
            if not left:
                break
            if left < least:
                least = left
                stalled.deadline = trio.current_time() + STALLED_S
    await trio.sleep(2)  # a delivery that breaks a promise may still come
    if world.application is not None:
        await trio.to_thread.run_sync(world.application.look, world.history)


async def _report(world: World) -> None:
    began = time.monotonic()
    while True:
        await trio.sleep(PROGRESS_S)
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"{minutes}:{seconds:02} {_counts(world, len(world.history.surprises))}", flush=True)


def _counts(world: World, broken: int) -> str:
    counts = ", ".join(f"{count} {what}" for what, count in sorted(world.history.counts.items()))
    return f"{counts}, {broken} promises broken"


def _count_logs(world: World, directory: Path) -> None:
    text = "".join(log.read_text(errors="replace") for log in directory.glob("*.err"))
    world.history.counts["generations begun"] = text.count("the log goes on in generation")
    world.history.counts["generations forgotten"] = text.count("is forgotten")
    world.history.counts["indexes built again"] = text.count("from the log:")
