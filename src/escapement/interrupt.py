"""Ctrl-C while what a command needs is still being imported, or started.

While modules are imported nothing is under way, so the process may end where it is. As an
exception it would come out of whatever module is just read, with a traceback that says nothing,
or as another error: a class body makes a ``RuntimeError`` of it.

While another process is started that nobody can end yet, it waits until somebody can.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130  # as shells count: 128 + SIGINT


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within it Ctrl-C ends the process; not where somebody handles or ignores it."""
    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def put_off() -> Iterator[None]:
    """Within it Ctrl-C waits for the end, unless it comes twice; not where somebody handles it."""
    came = False

    def note(_number: int, _frame: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
