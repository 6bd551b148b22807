"""Runs the console in the process of a broker: `escapement serve --console`, for development.

It shares the event loop of the broker. In production it is a process of its own, so that nothing
in it can make a message late.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import trio

from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.console.config import DEFAULT_CONSOLE_PORT, ConsoleConfig
from escapement.console.console import run_console
from escapement.event_log import EventLog

_log = EventLog(__name__)

CONFIG: Final = ConsoleConfig("127.0.0.1", DEFAULT_CONSOLE_PORT)


async def run_beside(at: str) -> None:
    """Serve the console for the broker at ``host:port``, until cancelled. A failure is logged."""

    def connected(name: str, token: str) -> AbstractAsyncContextManager[Broker]:
        return connect(f"escapement://{at}", name=name, token=token)

    people, programs = partial(connected, "console"), partial(connected, "gateway")
    try:
        await run_console(CONFIG, people, programs, trio.sleep_forever, lambda address: None)
    except* Exception as errors:
        _log.error("console.failed", "the console has ended: %s", errors.exceptions[0])
