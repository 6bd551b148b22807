"""Command lines, run in this process or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from support.processes.broker import BrokerProcess

TIMEOUT_S = 60
Say = Callable[..., str]


def process(broker: BrokerProcess, *words: str, **kwargs: Any) -> subprocess.Popen[bytes]:
    """Start a command in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "escapement", *words],
        env=os.environ | {"ESCAPEMENT_BROKER": f"127.0.0.1:{broker.port}"},
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs,
    )
