"""Lookup of messages by the dedup keys with which they were published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from escapement.client.connection.line import Line
from escapement.client.connection.retried_request import ask_again
from escapement.dedup import Digests, digests
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.protocol import commands as wire
from escapement.protocol.commands import Command

# Keys in one request. The broker handles that many in a few milliseconds, and serves other
# clients between requests.
REQUEST_KEYS: Final = 32_768


async def find(line: Line, topic: str, keys: str | Sequence[str]) -> tuple[str, Int64s]:
    """Return the full name of the topic, and the offset of each message, -1 if unknown.

    Args:
      keys: one dedup key, or several.

    Raises:
      InvalidRequest: if a key is not a valid dedup key.
      NotFound: if the topic does not exist.
    """
    name = TopicName.parse(topic).full
    wanted = digests([keys] if isinstance(keys, str) else keys)
    parts = [np.zeros(0, np.int64)]
    for low in range(0, len(wanted), REQUEST_KEYS):
        answer = await ask_again(line, _find(name, wanted[low : low + REQUEST_KEYS]))
        assert isinstance(answer, wire.Found)
        parts.append(answer.offsets)
    return name, np.concatenate(parts)


def _find(topic: str, part: Digests) -> Callable[[int], Command]:
    return lambda number: wire.Find(number, topic, part)
