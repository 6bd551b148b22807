"""Run one broker that rolls and deletes log generations often, with some slow commits."""

from __future__ import annotations

import os
import random
import time
from typing import Final

from escapement.broker import server
from escapement.broker.upkeep import forgetter, housekeeper
from escapement.storage.engine.open import open_engine
from escapement.storage.log import generation
from stress.stressed import SLOW_SHARE
from support.processes import limited_broker
from support.storage.commit_pipelines import FaultyEngine

# The share of transactions that wait before they begin, and their shortest and longest wait.
_SLOW_SHARE: Final = float(os.environ.get(SLOW_SHARE, "0.01"))
SLOW_S: Final = (0.2, 3.0)


def sometimes_slow(step: str) -> None:
    """Wait before some transactions, as on a busy disk."""
    if step == "begin" and random.random() < _SLOW_SHARE:
        time.sleep(random.uniform(*SLOW_S))


def main() -> None:
    """Serve with the configuration in the only argument, a JSON object."""
    forgetter.ROUND_S = 4.0  # type: ignore[misc]
    forgetter._NEXT_MS = 5_000  # type: ignore[misc]
    housekeeper.ROUND_S = 2.0  # type: ignore[misc]
    generation.GENERATION_SIZE_BYTES = 4 << 20  # type: ignore[misc]
    server.open_engine = lambda *where: FaultyEngine(open_engine(*where), sometimes_slow)  # type: ignore
    limited_broker.main()


if __name__ == "__main__":
    main()
