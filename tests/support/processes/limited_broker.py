"""Run one broker with limits that `escapement serve` has no options for."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from escapement.broker import server
from escapement.broker.broker import BrokerConfig
from escapement.broker.limits import DEFAULT_LIMITS
from escapement.broker.server import ServerConfig, serve
from escapement.clock import SystemClock
from escapement.errors import EscapementError
from escapement.storage.engine.address import MysqlAddress


class _ClockAhead(SystemClock):
    """The clocks of a machine whose wall clock is wrong."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


def main() -> None:
    """Serve with the configuration in the only argument, a JSON object."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asked = json.loads(sys.argv[1])
    server.SystemClock = partial(_ClockAhead, asked["clock_ahead_ms"])  # type: ignore
    config = ServerConfig(
        Path(asked["data"]),
        asked["log_url"],
        port=asked["port"],
        broker=BrokerConfig(
            limits=replace(DEFAULT_LIMITS, **asked["limits"]),
            tables=tuple(map(MysqlAddress.parse, asked["tables"])),
            outboxes=tuple(map(MysqlAddress.parse, asked["outboxes"])),
        ),
    )
    try:
        trio.run(partial(serve, config, lambda at: print(f"ready on {at}", flush=True)))
    except EscapementError as error:
        print(f"error: {error.code}: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
