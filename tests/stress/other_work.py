"""How much of the processors other programs use beside a soak, from Linux's ``/proc``.

Messages are late while a broker waits for a processor. So a soak does not judge how late they are
in a time in which other work used much of the processors.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from support.processes.processor_time import processor_time

# Shares of all processors. Each sample up to this one is judged.
CROWDED: Final = 0.25
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class OtherWork:
    """Measures between two calls.

    It counts what the host of a virtual machine takes away. It does not count programs with a low
    priority (``nice``), because others hardly wait for them.
    """

    def __init__(self) -> None:
        self._last = _readings()

    def share(self) -> float:
        """Return the share of all processors that other programs used since the last call."""
        now = _readings()
        passed_s, busy_s, own_s = (
            after - before for after, before in zip(now, self._last, strict=True)
        )
        self._last = now
        return max(busy_s - own_s, 0.0) / (passed_s * (os.cpu_count() or 1))


def _readings() -> tuple[float, float, float]:
    """Return the time, and the processor seconds of all programs and of this one."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, _, system, _, _, irq, softirq, steal = map(int, fields[:8])
    busy = user + system + irq + softirq + steal
    return time.monotonic(), busy / _TICKS, sum(processor_time().values())
