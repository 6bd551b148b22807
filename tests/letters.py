"""Letters for tests."""

from __future__ import annotations

import numpy as np

from escapement.message import NO_TIMES, Blobs, MessageBatch, Times
from escapement.storage.letters.letter import Letter


def letter(
    target: str,
    source_id: str,
    *payloads: bytes,
    delay_ms: list[int] | None = None,
    at_ms: list[int] | None = None,
) -> Letter:
    """A letter with these payloads, or its source id for one."""
    values = payloads or (source_id.encode(),)
    times = NO_TIMES
    if delay_ms is not None or at_ms is not None:
        times = Times(*(None if c is None else np.array(c, np.int64) for c in (delay_ms, at_ms)))
    return Letter(target, source_id, MessageBatch(Blobs.of(values)).encode(), len(values), times)
