"""How a message ended in the subscriptions that have finished it.

The broker keeps finished messages as ranges of offsets, without times and causes. But a dead letter
has both. So a page asks for the dead letters of the message, in a bounded search of their topic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import trio

from escapement.client.broker import Broker
from escapement.console.reading.at_once import at_once
from escapement.errors import EscapementError, Unauthenticated

# How long a page waits for dead letters. It shows the rest of the message in any case.
LOOK_S: Final = 0.2
_LATE: Final = f"no broker has answered within {LOOK_S:g} s"
# The messages whose endings a session remembers.
MOST_KEPT: Final = 64
# How often a page that follows a message looks for its dead letter. When the subscription has just
# given it up, the broker has yet to move the dead letter to its topic.
_LOOKS: Final = 3
# The clocks of two brokers differ by less.
_CLOCKS_MS: Final = 60_000
# The longest key that a search of dead letters is given.
_KEY_CHARS: Final = 1_000
# A message in one of these states may have become a dead letter.
_MAY_BE_DEAD: Final = ("acknowledged", "lapsed")


@dataclass(frozen=True, slots=True)
class Ending:
    """The known facts about the end of a message in one subscription.

    Attributes:
      letters: the dead letters that the message became and that are still there, as the verb
        ``dlq.find`` returns them, without payloads.
      looked: how many places of the dead-letter topic were searched.
      is_whole: whether these were all.
      trouble: why no broker could tell; "" if one could.
      looks: how many searches there were.
    """

    letters: Sequence[Mapping[str, Any]] = ()
    looked: int = 0
    is_whole: bool = False
    trouble: str = ""
    looks: int = 1

    @property
    def gap(self) -> str:
        """Why the message may have a dead letter although none was found; "" if it has none."""
        if self.trouble:
            return f"Whether it is a dead letter now is not known: {self.trouble.rstrip('.')}."
        if self.letters or self.is_whole:
            return ""
        return (
            f"It is none of the first {self.looked:,} dead letters since it was published. "
            "The command escapement dlq find looks at all."
        )

    @property
    def is_final(self) -> bool:
        """Whether a page that follows the message need not look again."""
        return bool(self.letters) or self.looks >= _LOOKS


class Endings:
    """The endings that a session has seen, so that pages that follow a message search seldom."""

    def __init__(self) -> None:
        # By message, and then by subscription. The messages that were read longest ago come first.
        self._kept: OrderedDict[str, dict[str, Ending]] = OrderedDict()

    async def of(
        self, broker: Broker, message: Mapping[str, Any], *, again: bool
    ) -> dict[str, Ending]:
        """Return how a message ended, by subscription.

        Args:
          message: the message, as the verb ``messages.show`` returns it.
          again: whether the page has shown the message before, and now follows it.
        """
        id = f"{message['topic']}@{message['offset']}"
        before = self._kept.get(id, {}) if again else {}
        found = {}
        for status in message["subscriptions"]:
            if status["state"] in _MAY_BE_DEAD:
                name = status["subscription"]
                found[name] = before.get(name) or Ending(trouble=_LATE, looks=0)
        names = [name for name, ending in found.items() if not ending.is_final]

        async def look(name: str) -> None:
            looks = found[name].looks + 1
            found[name] = replace(await _find(broker, message, name), looks=looks)

        with trio.move_on_after(LOOK_S):
            await at_once([partial(look, name) for name in names])
        self._kept[id] = found
        self._kept.move_to_end(id)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return found


async def _find(broker: Broker, message: Mapping[str, Any], subscription: str) -> Ending:
    key = message["key"]
    try:
        page = await broker.admin(
            "dlq.find",
            topic=message["topic"],
            subscription=subscription,
            offset=message["offset"],
            key=key if _is_exact(key) else None,
            from_ms=max(message["published_at_ms"] - _CLOCKS_MS, 1),
        )
    except Unauthenticated:
        raise
    except EscapementError as error:
        return Ending(trouble=str(error))
    letters = [
        {name: value for name, value in letter.items() if name != "payload"}
        for letter in page["dead_letters"]
    ]
    return Ending(letters, page["looked"], page["next"] is None)


def _is_exact(key: str | None) -> bool:
    """Return whether the text of a key is the key, neither cut nor with bytes as escapes."""
    return key is not None and len(key) <= _KEY_CHARS and "\\" not in key
