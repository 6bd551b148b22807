"""Blocking calls of a simulated process, which take virtual time between their steps.

A call runs in a thread of its own if it may have to wait, and otherwise at once. The event loop
waits until the thread ends or waits, so the two never run at the same time, and a seed repeats
exactly. A call that waits is *parked*. It goes on when its virtual time has passed, when something
else wakes it, or when its process is killed.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, TypeVar

import trio

from escapement.errors import StorageUnavailable
from escapement.storage import members
from escapement.storage.members import Member

T = TypeVar("T")

# The share of calls that may wait between two steps.
SLOW_SHARE: Final = 0.04
_LONGEST_LATENCY_S: Final = 0.02


class Killed(BaseException):
    """Raised inside a parked call when its process is killed."""


class Locks:
    """The locks that parked calls wait for, by name: those of the database server, and mutexes.

    A lock has one holder that has it alone, or several that share it.
    """

    def __init__(self) -> None:
        self._holders: dict[Hashable, dict[object, bool]] = {}  # whether each holder has it alone
        self._waiting: list[trio.Event] = []
        self._freed = False

    @property
    def are_free(self) -> bool:
        return not any(self._holders.values())

    def take(self, name: Hashable, holder: object, *, alone: bool) -> bool:
        """Take a lock, or take a shared one alone. Return whether that was possible."""
        holders = self._holders.setdefault(name, {})
        others = [is_alone for one, is_alone in holders.items() if one is not holder]
        if any(others) or (alone and others):
            return False
        holders[holder] = alone or holders.get(holder, False)
        return True

    def wait(self, seconds: float) -> None:
        """Wait inside a call until a lock was freed, or the time has passed."""
        event = trio.Event()
        self._waiting.append(event)
        park(seconds, event)

    def free(self, holder: object) -> None:
        """Free all locks of a holder."""
        for holders in self._holders.values():
            self._freed |= holders.pop(holder, None) is not None

    def wake(self) -> None:
        """Wake the calls that wait, if a lock was freed. Call this in the event loop."""
        if self._freed:
            self._freed = False
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                event.set()


class Mutex:
    """A lock in a process that a call keeps while it waits for the database."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._holder = object()

    def __enter__(self) -> None:
        holder = object()
        while not self._locks.take(self, holder, alone=True):
            self._locks.wait(float("inf"))
        self._holder = holder

    def __exit__(self, *error: object) -> None:
        self._locks.free(self._holder)


@contextlib.contextmanager
def waiting_members(locks: Locks) -> Iterator[None]:
    """Let the calls of a process wait for its row in ``brokers``, inside the ``with`` block."""
    members.Member = lambda *fields: Member(*fields, lock=Mutex(locks))  # type: ignore
    try:
        yield
    finally:
        members.Member = Member  # type: ignore[misc]


class _Thread(threading.Thread):
    """A thread for blocking calls, which runs only while the event loop waits for it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._run_on, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self.function: Callable[[], Any] | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_over = False
        self.wish: tuple[float, trio.Event | None] = (0.0, None)
        self.killed = False
        self.start()

    def run(self) -> None:
        while True:
            self._run_on.acquire()
            if self.function is None:
                return
            try:
                self.value = self.function()
            except BaseException as error:
                self.error = error
            self.is_over = True
            self._stands.release()

    def begin(self, function: Callable[[], Any]) -> None:
        self.function, self.value, self.error = function, None, None
        self.is_over = self.killed = False

    def go_on(self) -> None:
        """Let the thread run until it ends its call or parks."""
        self._run_on.release()
        self._stands.acquire()

    def park(self, seconds: float, wake: trio.Event | None) -> None:
        """Stop the thread, which is the current one, until ``go_on``."""
        self.wish = seconds, wake
        self._stands.release()
        self._run_on.acquire()
        if self.killed:
            raise Killed

    def end(self) -> None:
        self.function = None
        self._run_on.release()
        self.join()


class Threads:
    """The threads of a simulation, which its processes share."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []

    def take(self) -> _Thread:
        return self._idle.pop() if self._idle else _Thread()

    def give_back(self, thread: _Thread) -> None:
        self._idle.append(thread)

    def close(self) -> None:
        for thread in self._idle:
            thread.end()
        self._idle.clear()


def may_park() -> bool:
    """Return whether the current code runs in a call that can wait."""
    return isinstance(threading.current_thread(), _Thread)


def park(seconds: float, wake: trio.Event | None = None) -> None:
    """Wait inside a call until the time has passed or ``wake`` is set."""
    thread = threading.current_thread()
    assert isinstance(thread, _Thread), "only a call in a thread can wait"
    thread.park(seconds, wake)


class Calls:
    """A runner (``storage/blocking.py``) for the calls of one process.

    Args:
      locks: the locks that calls may have to wait for.
    """

    def __init__(self, threads: Threads, rng: random.Random, locks: Locks) -> None:
        self._threads = threads
        self._rng = rng
        self._locks = locks
        self._waiting: dict[trio.CancelScope, None] = {}  # in a fixed order
        self.dead = False
        self.slow_share = SLOW_SHARE

    async def __call__(self, function: Callable[..., T], /, *arguments: object) -> T:
        await trio.lowlevel.checkpoint()
        self._check_alive()
        slow = self._rng.random() < self.slow_share
        if not slow and self._locks.are_free:
            return function(*arguments)
        if slow:
            await self._sleep(self._rng.uniform(0, _LONGEST_LATENCY_S), None)
            await self._end_if_dead()
        thread = self._threads.take()
        thread.begin(lambda: function(*arguments))
        thread.go_on()
        self._locks.wake()
        while not thread.is_over:
            await self._sleep(*thread.wish)
            thread.killed = self.dead
            thread.go_on()
            self._locks.wake()
        value, error = thread.value, thread.error
        self._threads.give_back(thread)
        await self._end_if_dead()
        if error is not None:
            raise error
        return value  # type: ignore[no-any-return]

    async def _sleep(self, seconds: float, wake: trio.Event | None) -> None:
        """Wait as a thread does: only the end of the process interrupts it."""
        if self.dead:
            return
        with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds) as scope:
            self._waiting[scope] = None
            try:
                await (await trio.sleep_forever() if wake is None else wake.wait())
            finally:
                del self._waiting[scope]

    async def _end_if_dead(self) -> None:
        if self.dead:
            await trio.lowlevel.checkpoint()  # cancelled, unless this is a last call
            self._check_alive()

    def _check_alive(self) -> None:
        if self.dead:
            raise StorageUnavailable("the process was killed, says the simulation")

    def kill(self) -> None:
        """Interrupt all parked calls. No call begins any more."""
        self.dead = True
        for scope in list(self._waiting):
            scope.cancel()
