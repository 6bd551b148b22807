"""Blocking calls that hang between two of their database steps, while the event loop goes on.

A call that may hang runs in a thread of its own. The event loop waits until the thread ends or
hangs, so the two never run at once, and a test with a seed replays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class _Call(threading.Thread):
    """A call in a thread, which runs only while the event loop waits for it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._run_on, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self.ended = trio.Event()
        self.is_over = False
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        self._run_on.acquire()
        try:
            self.value = self._function()
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._stands.release()

    def go_on(self) -> None:
        """Let the thread run until it ends or hangs."""
        self._run_on.release()
        self._stands.acquire()

    def hang(self) -> None:
        """Stop the thread, which is the current one, until ``go_on``."""
        self._stands.release()
        self._run_on.acquire()


class HangingCalls:
    """A runner of blocking calls, one of which may hang.

    ``before`` is the hook for a ``FaultyEngine``.
    """

    def __init__(self) -> None:
        self._hangs_at: Callable[[str], bool] | None = None
        self._hanging: _Call | None = None

    async def __call__(self, function: Callable[..., T], /, *arguments: Any) -> T:
        await trio.lowlevel.checkpoint()
        if self._hangs_at is None:
            return function(*arguments)
        call = _Call(lambda: function(*arguments))
        call.start()
        call.go_on()
        if not call.is_over:
            self._hanging = call
            with trio.CancelScope(shield=True):  # as in a thread
                await call.ended.wait()
        if call.error is not None:
            raise call.error
        return call.value  # type: ignore[no-any-return]

    def hang_at(self, step: Callable[[str], bool]) -> None:
        """Hang before the first step from now on that the function accepts."""
        self._hangs_at = step

    def before(self, step: str) -> None:
        call = threading.current_thread()
        if isinstance(call, _Call) and self._hangs_at is not None and self._hangs_at(step):
            self._hangs_at = None
            call.hang()

    @property
    def is_hanging(self) -> bool:
        return self._hanging is not None

    def release(self) -> None:
        """Hang no more. Let the call that hangs run to its end before anything else happens."""
        self._hangs_at = None
        call, self._hanging = self._hanging, None
        if call is not None:
            call.go_on()
            assert call.is_over
            call.ended.set()


def nth(number: int, *beginnings: str) -> Callable[[str], bool]:
    """Return a function that accepts the step of this number among those that begin so."""
    left = number

    def accepts(step: str) -> bool:
        nonlocal left
        left -= step.startswith(beginnings)
        return not left

    return accepts
