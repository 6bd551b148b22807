"""The choice of which consumer gets which run of messages. Pure.

Round robin: consumers take turns. A turn is a run of messages and not a single message, because a
frame costs the same however many messages it has. A run is a fair share of the ready messages. So a
few ready messages are spread over all consumers with permits, and many leave in full frames. V6.

Least busy: each message goes to the consumer with the fewest messages in flight, so that all
consumers have equally many, as far as permits allow. Equally busy consumers take turns. Q4.
"""

from __future__ import annotations

from collections.abc import Sequence


def share_out(
    ready: int, capacities: Sequence[int], turn: int, frame_messages: int
) -> tuple[list[tuple[int, int]], int]:
    """Divide the ready messages into runs; consumers take turns.

    Args:
      ready: how many messages may be delivered now.
      capacities: how many messages each consumer accepts now, by position.
      turn: the position of the consumer whose turn it is.
      frame_messages: the longest run.

    Returns:
      ``(position, count)`` for each run, at most one for each consumer, and the position of the
        consumer whose turn is next.
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
    """Divide the ready messages into runs, so that all consumers then have equally many in flight.

    Other arguments and the result are as for ``share_out``. The runs are sorted, with the least
    busy consumer first.

    Args:
      busy: how many messages each consumer has in flight, by position.
    """
    size = len(capacities)
    room = [min(capacity, frame_messages) for capacity in capacities]
    takers = sorted(
        (position for position in range(size) if room[position] > 0),
        key=lambda position: (busy[position], (position - turn) % size),
    )

    def poured(level: int) -> int:
        return sum(min(room[at], max(level - busy[at], 0)) for at in takers)

    # Find the highest level to which the ready messages fill all consumers.
    low, high = 0, max((busy[at] + room[at] for at in takers), default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if poured(middle) <= ready else (low, middle - 1)
    counts = {at: min(room[at], max(low - busy[at], 0)) for at in takers}
    # Not every consumer can get one of the remaining messages: they take turns.
    left = ready - sum(counts.values())
    following = turn
    for step in range(size):
        at = (turn + step) % size
        if left and at in counts and counts[at] < room[at] and busy[at] <= low:
            counts[at] += 1
            left -= 1
            following = (at + 1) % size
    return [(at, counts[at]) for at in takers if counts[at]], following
