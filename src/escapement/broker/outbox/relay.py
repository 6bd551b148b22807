"""The base class of relays: tasks that move something from an application's database to the log.

A relay works in *steps*. It polls, because the database of an application cannot call the broker.
The pause between two steps is short while rows come, and grows while none come. A *hint* that rows
were inserted ends the pause. After an error the relay closes its connection, and the next step
opens another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeVar

import trio

from escapement.broker.outage import Outage
from escapement.errors import StorageError, StorageUnavailable
from escapement.storage.blocking import Run

T = TypeVar("T")

# The pause between two looks: the shortest while rows come, the longest while none come.
_SHORTEST_S: Final = 0.005
LONGEST_S: Final = 0.25
# The shortest pause after an error, and the longest after several.
_FIRST_RETRY_S: Final = 0.25
_LAST_RETRY_S: Final = 5.0
# How long a stop of the broker waits for the step in progress.
_STOP_S: Final = 2.0


class Progress(Enum):
    """The result of a step."""

    NONE = 0  # there was nothing to do
    SOME = 1
    MORE = 2  # something was done, and more work probably follows


class Source(Protocol):
    """A relay's connection to the database of an application."""

    @property
    def location(self) -> str:
        """The address of the database for log lines."""
        ...

    def close(self) -> None:
        """Close the connection, if it is open. The open transaction is rolled back."""
        ...


class Relay(ABC):
    """A relay.

    Args:
      database: the address of the database of the application.
      run: makes blocking calls to it.
      outage: logs that the relay cannot work, and that it works again.
    """

    def __init__(self, source: Source, database: str, run: Run, outage: Outage) -> None:
        self._source = source
        self.database = database
        self._run = run
        self._outage = outage
        self._working = trio.Lock()  # held during a step
        self._stopping = False
        self._hinted = trio.Event()
        self.problem = ""  # why rows wait, or ""

    @property
    def _longest_s(self) -> float:
        """The longest pause between two looks while no rows come."""
        return LONGEST_S

    @abstractmethod
    async def _step(self) -> Progress:
        """Do a bounded piece of work. Connect first if the last step has failed."""

    @abstractmethod
    def _failed(self) -> None:
        """Let the next step connect again, because a step has failed."""

    @property
    def location(self) -> str:
        return self._source.location

    def hint(self) -> None:
        """Begin the next step soon, because rows were inserted."""
        self._hinted.set()

    async def stop(self) -> None:
        """Begin no further step, and wait a while for the step in progress."""
        self._stopping = True
        with trio.move_on_after(_STOP_S):
            async with self._working:
                pass

    def close(self) -> None:
        """Close the connection to the application's database."""
        self._source.close()

    async def run(self) -> None:
        """Make steps until the broker stops."""
        outage = self._outage
        pause_s = _SHORTEST_S
        while not self._stopping:
            self._hinted = trio.Event()
            began_s, progress, least_s = trio.current_time(), Progress.NONE, _SHORTEST_S
            with outage:
                progress = await self._turn()
            if progress is Progress.MORE:
                continue
            if outage.goes_on:
                pause_s = min(2 * max(pause_s, _FIRST_RETRY_S / 2), _LAST_RETRY_S)
            elif progress is Progress.SOME:
                pause_s = _SHORTEST_S
            else:
                pause_s = min(2 * pause_s, self._longest_s)
                # A look may take long if the database cannot remove deleted rows. Then looks take
                # at most half of the time.
                least_s = max(trio.current_time() - began_s, least_s)
            if outage.goes_on:
                await trio.sleep(pause_s)
            elif await self._rests(least_s, pause_s):
                pause_s = _SHORTEST_S

    async def _rests(self, least_s: float, most_s: float) -> bool:
        """Wait for a hint, at least and at most for these times. Return whether one came."""
        now_s = trio.current_time()
        await trio.sleep_until(now_s + least_s)
        with trio.move_on_at(now_s + most_s):
            await self._hinted.wait()
        return self._hinted.is_set()

    async def _turn(self) -> Progress:
        async with self._working:
            try:
                progress = await self._step()
            except BaseException as error:
                self._failed()
                self._source.close()
                said = str(error).removeprefix(f"{self.location}: ")
                self.problem = said.removeprefix(f"{self.database}: ")
                raise
        self.problem = ""
        return progress

    async def _in_application(self, call: Callable[..., T], *arguments: object) -> T:
        """Make a call to the application's database.

        Its errors must not end the broker, so each counts as an outage.
        """
        try:
            return await self._run(call, *arguments)
        except StorageUnavailable:
            raise
        except StorageError as error:
            raise StorageUnavailable(str(error)) from error
