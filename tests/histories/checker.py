"""All rules over a history. Pure: no clock and no input or output.

Each rule yields a line for each violation. The rules know nothing of brokers and storage. They
allow only what clients cannot see: the answer to a call may be lost, and bytes may be on their way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from histories.changes import inexplicable
from histories.dead_letters import wrong_dead_letters
from histories.ends import ended
from histories.history import History
from histories.order import key_order, log_order
from histories.repeats import acknowledged, in_flight_twice, unexplained, unmarked
from histories.storing import came_elsewhere, stored_once, unfinished
from histories.timing import amended, early

_ALWAYS: Final[tuple[Callable[[History], Iterator[str]], ...]] = (
    ended,
    stored_once,
    came_elsewhere,
    wrong_dead_letters,
    early,
    acknowledged,
    in_flight_twice,
    unexplained,
    unmarked,
    amended,
    inexplicable,
    key_order,
    log_order,
)


def violations(history: History, *, drained: bool) -> Iterator[str]:
    """Yield all violations of a history.

    Args:
      drained: whether every message should have been delivered and acknowledged.
    """
    if drained:
        yield from unfinished(history)
    yield from history.surprises
    for rule in _ALWAYS:
        yield from rule(history)
