"""The signals that ask a process to stop."""

from __future__ import annotations

import signal

import trio


async def stopped() -> None:
    """Wait for SIGTERM or SIGINT. A second signal then ends the process at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            return
