"""The broker process of the stress test."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, ClassVar, Final

from support.processes.broker import BrokerProcess

# The environment variable with the share of transactions that wait before they begin.
SLOW_SHARE: Final = "ESCAPEMENT_TEST_SLOW_SHARE"
LIMITS: Final[dict[str, Any]] = {
    "checkpoint_interval_s": 0.2,
    "sparse_generation_bytes": 256 << 10,
    "index_cache_bytes": 8 << 20,  # full within a minute, so that a soak sees what else grows
}


class StressedBroker(BrokerProcess):
    """A broker process that ``stressed_broker.py`` runs."""

    runner = Path(__file__).with_name("stressed_broker.py")
    environment: ClassVar[dict[str, str]] = {"PYTHONPATH": os.pathsep.join(sys.path)}
