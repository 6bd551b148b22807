"""Runs the HTTP side port beside the broker, in the same event loop.

No failure of the side port stops the broker: it is logged, and the port starts again after a pause.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import hypercorn.trio
import trio
from hypercorn.config import Config

from escapement.broker.side_port.app import SidePortApp
from escapement.broker.side_port.config import SidePortConfig
from escapement.broker.side_port.shown import Shown
from escapement.event_log import EventLog

_log = EventLog(__name__)

# Pauses before the port starts again: the first, and the longest. They double. A port that has run
# for longer than the longest pause begins with the first again.
_FIRST_PAUSE_S: Final = 0.5
_LAST_PAUSE_S: Final = 30.0


async def run_side_port(config: SidePortConfig, shown: Shown) -> None:
    """Serve HTTP until cancelled."""
    pause_s = _FIRST_PAUSE_S
    where = f"[{config.host}]" if ":" in config.host else config.host
    address = f"{where}:{config.port}"
    while True:
        began_s = trio.current_time()
        try:
            await _serve(address, config, shown)
        except* Exception as errors:
            _log.error(
                "http.failed",
                "the HTTP side port on %s failed: %s",
                address,
                _first(errors),
                address=address,
            )
        if trio.current_time() > began_s + _LAST_PAUSE_S:
            pause_s = _FIRST_PAUSE_S
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_PAUSE_S)


async def _serve(address: str, config: SidePortConfig, shown: Shown) -> None:
    settings = Config()
    # Hypercorn would not close a socket that it cannot bind.
    listeners = await trio.open_tcp_listeners(config.port, host=config.host)
    settings.bind = [f"fd://{listener.socket.detach()}" for listener in listeners]
    settings.errorlog = logging.getLogger("hypercorn.error")
    settings.errorlog.setLevel(logging.WARNING)
    settings.include_server_header = False
    async with trio.open_nursery() as nursery:
        app = SidePortApp(shown, nursery, admin=config.admin)
        # The task ends by cancellation only, so the trigger never fires.
        serve = partial(
            hypercorn.trio.serve,
            app.asgi,  # type: ignore[arg-type]
            settings,
            shutdown_trigger=trio.sleep_forever,
            mode="asgi",
        )
        await nursery.start(serve)
        _log.info("http.ready", "the HTTP side port is on http://%s", address, address=address)


def _first(errors: BaseExceptionGroup[Exception]) -> Exception:
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, Exception)
    return found
