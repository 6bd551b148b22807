"""Runs the console in the process of a broker: `escapement serve --console`, for development.

It shares the event loop of the broker. In production it is a process of its own, so that nothing
in it can make a message late.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from escapement.client.broker import Broker
from escapement.client.connect import connect
from escapement.console.config import ConsoleConfig
from escapement.console.console import run_console
from escapement.event_log import EventLog
from escapement.http.server import address_text

_log = EventLog(__name__)


async def run_beside(config: ConsoleConfig, at: str) -> None:
    """Serve the console for the broker at ``host:port``, until cancelled. A failure is logged."""

    def connected(name: str, token: str) -> AbstractAsyncContextManager[Broker]:
        return connect(f"escapement://{at}", name=name, token=token)

    people, programs = partial(connected, "console"), partial(connected, "gateway")
    try:
        await run_console(config, people, programs, trio.sleep_forever, lambda address: None)
    except* Exception as errors:
        where = address_text(config.host, config.port)
        _log.error(
            "console.failed",
            "the console on %s has ended: %s",
            where,
            errors.exceptions[0],
            address=where,
        )
