"""Each message that died has one dead letter, and none vanishes (invariants 1 and 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from histories.history import NEVER_MS, History


def wrong_dead_letters(history: History) -> Iterator[str]:
    for name, found in history.dead_letters.items():
        for original, count in Counter(original for _, original in found.seen.values()).items():
            if count > 1:
                yield f"doubled (6): offset {original} of {name} has {count} dead letters"
        for number, original in found.seen.values():
            if (name, original) not in history.courses and not _may_have_died_unread(
                history, name, number, original
            ):
                yield (
                    f"unknown (6): message {number} (offset {original}) of {name} has a dead letter"
                    " and was never delivered"
                )
        for offset in found.seen.keys() - found.remaining - found.asked:
            yield f"lost (1): dead letter {offset} of {name} is gone, and no client redrove it"


def _may_have_died_unread(history: History, name: str, number: int, original: int) -> bool:
    """Return whether all deliveries of a message may have been lost on their way.

    A delivery counts when it is sent. A trouble loses unread data in sockets, so each delivery may
    be lost if there were as many troubles before the dead letter.
    """
    if history.troubles is None:
        return True  # connections may break at any time
    message = history.messages[number]
    moved_ms = [one.due_ms or NEVER_MS for one in message.amendments if one.done is not False]
    due_s = history.seconds(min([message.earliest_ms, *moved_ms]))
    listed_s = history.dead_letters[name].listed_s[original]
    troubles = sum(due_s <= began_s < listed_s for began_s, _ in history.troubles)
    return troubles >= history.max_deliveries[name]


def perhaps_redriven(history: History) -> Counter[int]:
    """Return how many dead letters of each message were redriven, or may have been."""
    return Counter(
        number
        for found in history.dead_letters.values()
        for offset, (number, _) in found.seen.items()
        if offset in found.asked or offset not in found.remaining
    )


def redriven(history: History) -> Counter[int]:
    """Return how many dead letters of each message were redriven before the last listing."""
    return Counter(
        number
        for found in history.dead_letters.values()
        for offset, (number, _) in found.seen.items()
        if offset not in found.remaining
    )
