"""Kills, damage and outages, one after the other."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import trio

from stress.world import World
from support.database.servers import MysqlServer
from support.faults.damaged_bytes import scramble
from support.processes.broker import BrokerProcess, until

# Connections may end up to this much later than a trouble: the lease has to be renewed, and clients
# reconnect.
CUT_OFF_S: Final = 5.0
# Troubles that a broker must survive without a restart.
_BROKER_KEEPS_RUNNING: Final = ("damaged index", "database killed", "database paused")


def in_rounds(first: str, others: Sequence[str], chance: random.Random) -> Iterator[str]:
    """Yield kinds of troubles without end, in a random order, but each kind in every round.

    ``first`` is as frequent as all ``others`` together, so a round is twice as long as ``others``.
    """
    while True:
        kinds = [*others, *[first] * len(others)]
        chance.shuffle(kinds)
        yield from kinds


class Troubles:
    """A kill, damage or outage every few seconds. The broker runs again after each."""

    def __init__(self, world: World, broker: BrokerProcess, database: MysqlServer | None) -> None:
        self._world = world
        self._broker = broker
        self._database = database
        self._kinds: dict[str, Callable[[], None]] = {
            "SIGKILL": self._kill,
            "SIGKILL twice": self._kill_twice,
            "SIGTERM": self.stop,
            "damaged index": self._damage,
            "SIGKILL and damaged index": self._kill_and_damage,
            "SIGKILL and deleted index": self._kill_and_delete,
        }
        if database is not None:
            self._kinds |= {
                "database killed": database.kill,
                "database paused": database.pause,
                "database and broker killed": self._kill_both,
            }

    @property
    def kinds(self) -> list[str]:
        """The kinds of troubles, by the names under which the history counts them."""
        return list(self._kinds)

    async def run(self, seconds: float) -> None:
        """Cause troubles until the time is over."""
        end_s = trio.current_time() + seconds
        chance, history = self._world.chance, self._world.history
        first, *others = self._kinds
        coming = in_rounds(first, others, chance)
        while trio.current_time() < end_s:
            await trio.sleep(chance.uniform(1, 8))
            kind = next(coming)
            history.counts[kind] += 1
            began_s = history.now_s()
            await self._restart_if_ended()
            await trio.to_thread.run_sync(self._kinds[kind])
            await trio.sleep(chance.uniform(0, 2))
            if self._database is not None:
                await trio.to_thread.run_sync(self._database.restore)
            if kind in _BROKER_KEEPS_RUNNING:
                await self._restart_if_ended()
            else:
                await trio.to_thread.run_sync(self._broker.start)
            await until(self._broker.ready)
            times = 2 if kind == "SIGKILL twice" else 1
            history.trouble(began_s, history.now_s() + CUT_OFF_S, times)

    def stop(self) -> None:
        """Send SIGTERM; note an end that is not clean."""
        self._note_end()
        if self._broker.running and (code := self._broker.stop()):
            self._world.history.surprises.append(f"ended: SIGTERM ended with code {code}")

    def _note_end(self) -> None:
        """Record a fault if the broker process has ended by itself."""
        if not self._broker.running:
            code = self._broker.process.returncode
            self._world.history.surprises.append(
                f"ended: the broker ended by itself with code {code}"
            )

    async def _restart_if_ended(self) -> None:
        self._note_end()
        if not self._broker.running:
            await trio.to_thread.run_sync(self._broker.start)

    def _kill(self) -> None:
        self._broker.kill()

    def _kill_twice(self) -> None:
        """Kill the next broker while it recovers, or shortly after."""
        self._broker.kill()
        self._broker.launch()
        try:
            self._broker.process.wait(self._world.chance.uniform(0.3, 1.5))
            self._note_end()
        except subprocess.TimeoutExpired:
            self._broker.kill()

    def _damage(self) -> None:
        scramble(self._broker.index)

    def _kill_and_damage(self) -> None:
        self._broker.kill()
        scramble(self._broker.index)

    def _kill_and_delete(self) -> None:
        self._broker.kill()
        shutil.rmtree(self._broker.index, ignore_errors=True)

    def _kill_both(self) -> None:
        assert self._database is not None
        self._database.kill()
        self._broker.kill()
