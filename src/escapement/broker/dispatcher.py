"""Which consumer gets which run: a pure choice.

Round robin in runs: consumers take turns, and a turn is a run of messages rather
than one, because a frame costs the same however many it carries. A run is a fair
share of what is ready, so that a small amount is spread over all who have credit
and a large one leaves in full frames. V6.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_out(
    ready: int, capacities: Sequence[int], turn: int, frame_messages: int
) -> tuple[list[tuple[int, int]], int]:
    """Cut what is ready into runs.

    Args:
      ready: how many messages may go now.
      capacities: what each consumer may be sent now, by its position.
      turn: the position whose turn it is.
      frame_messages: the longest run.

    Returns:
      ``(position, count)`` for each run, at most one for each consumer, and the
      position whose turn is next.
    """
    takers = [(turn + step) % len(capacities) for step in range(len(capacities))]
    takers = [position for position in takers if capacities[position] > 0]
    runs: list[tuple[int, int]] = []
    for index, position in enumerate(takers):
        fair = -(-ready // (len(takers) - index))
        count = min(fair, capacities[position], frame_messages)
        if not count:
            break
        runs.append((position, count))
        ready -= count
    following = (runs[-1][0] + 1) % len(capacities) if runs else turn
    return runs, following
