"""Runs the HTTP side port beside the broker, in the same event loop.

No failure of the side port stops the broker: it is logged, and the port starts again after a pause.
"""

from __future__ import annotations

from typing import Final

import trio

from escapement.broker.side_port.app import SidePortApp
from escapement.broker.side_port.config import SidePortConfig
from escapement.broker.side_port.shown import Shown
from escapement.event_log import EventLog
from escapement.http.connections import first_of
from escapement.http.server import address_text, serve_http

_log = EventLog(__name__)

# Pauses before the port starts again: the first, and the longest. They double. A port that has run
# for longer than the longest pause begins with the first again.
_FIRST_PAUSE_S: Final = 0.5
_LAST_PAUSE_S: Final = 30.0


async def run_side_port(config: SidePortConfig, shown: Shown) -> None:
    """Serve HTTP until cancelled."""
    pause_s = _FIRST_PAUSE_S
    address = address_text(config.host, config.port)
    while True:
        began_s = trio.current_time()
        try:
            await _serve(config, address, shown)
        except* Exception as errors:
            _log.error(
                "http.failed",
                "the HTTP side port on %s failed: %s",
                address,
                first_of(errors),
                address=address,
            )
        if trio.current_time() > began_s + _LAST_PAUSE_S:
            pause_s = _FIRST_PAUSE_S
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


async def _serve(config: SidePortConfig, address: str, shown: Shown) -> None:
    def ready(port: int) -> None:
        _log.info("http.ready", "the HTTP side port is on http://%s", address, address=address)

    app = SidePortApp(shown, admin=config.admin)
    # The task ends by cancellation only.
    await serve_http(app.asgi, config.host, config.port, trio.sleep_forever, ready=ready)
