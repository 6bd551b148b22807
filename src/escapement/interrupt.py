"""Ctrl-C while what a command needs is still being imported.

Nothing is under way then, so the process may end where it is. As an exception it would come out
of whatever module is just read, with a traceback that says nothing, or as another error: a
class body makes a ``RuntimeError`` of it.
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
