"""Asking what may be asked twice: a request whose answer was lost is sent again."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from escapement.client.line import Line
from escapement.errors import Disconnected
from escapement.protocol.commands import Command


async def ask_again(line: Line, make: Callable[[int], Command]) -> Command:
    """Ask until there is an answer, over as many connections as that takes.

    Raises:
      Disconnected: if there is none in time, or this side has closed.
    """
    deadline_s = anyio.current_time() + line.settings.request_timeout_s
    while True:
        try:
            return await line.ask(make)
        except Disconnected:
            if line.closed is not None or anyio.current_time() >= deadline_s:
                raise
