"""Which consumer gets which run: a pure choice, in one of two ways.

Round robin in runs: consumers take turns, and a turn is a run of messages rather
than one, because a frame costs the same however many it carries. A run is a fair
share of what is ready, so that a small amount is spread over all who have credit
and a large one leaves in full frames. V6.

Least busy: each message goes to the consumer that holds the fewest at that moment, so that
all hold equally many as far as credit allows; what is ready is poured over them like water
over steps. Of equals, those whose turn it is go first. Q4.
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


def level_out(
    ready: int, capacities: Sequence[int], busy: Sequence[int], turn: int, frame_messages: int
) -> tuple[list[tuple[int, int]], int]:
    """Cut what is ready into runs, so that all hold equally many afterwards.

    As ``share_out``, but the choice goes by ``busy``: how many messages each consumer holds,
    by its position. The runs go from the least busy to the busiest.
    """
    size = len(capacities)
    room = [min(capacity, frame_messages) for capacity in capacities]
    takers = sorted(
        (position for position in range(size) if room[position] > 0),
        key=lambda position: (busy[position], (position - turn) % size),
    )

    def poured(level: int) -> int:
        return sum(min(room[at], max(level - busy[at], 0)) for at in takers)

    # The highest level that what is ready suffices for.
    low, high = 0, max((busy[at] + room[at] for at in takers), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if poured(middle) <= ready else (low, middle - 1)
    counts = {at: min(room[at], max(low - busy[at], 0)) for at in takers}
    # What is left does not suffice for one more each: those whose turn it is get it.
    left = ready - sum(counts.values())
    following = turn
    for step in range(size):
        at = (turn + step) % size
        if left and at in counts and counts[at] < room[at] and busy[at] <= low:
            counts[at] += 1
            left -= 1
            following = (at + 1) % size
    return [(at, counts[at]) for at in takers if counts[at]], following
