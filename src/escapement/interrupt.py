"""Handling of Ctrl-C by commands.

While modules are imported, no work is in progress, so Ctrl-C ends the process at once. A
``KeyboardInterrupt`` would show a meaningless traceback from the module being imported, or
become another error: a class body turns it into a ``RuntimeError``.

While a command starts another process that it cannot end yet, Ctrl-C is delayed until it can.
``interruptible`` has what async commands use.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

INTERRUPTED: Final = 130  # the exit status by shell convention: 128 + SIGINT


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """End the process at once if Ctrl-C is pressed during the ``with`` block.

    Does nothing if the program handles or ignores SIGINT already, or in another thread than the
    main one.
    """
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
    """Delay the ``KeyboardInterrupt`` of a Ctrl-C until the ``with`` block ends.

    A second Ctrl-C interrupts the block at once. Does nothing if the program handles or ignores
    SIGINT already, or in another thread than the main one.
    """
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
