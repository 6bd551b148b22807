"""Lookup of the messages that a request names by their keys or dedup keys.

``lines`` are the client's connections to the brokers, by which the lookup asks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from escapement.client.administration.verbs import ask_verb
from escapement.client.connection.lines import Lines
from escapement.client.connection.retried_request import ask_in_parts
from escapement.client.message_ids import What, name_messages
from escapement.client.selection import criteria, select
from escapement.dedup import digests
from escapement.errors import InvalidRequest
from escapement.message import Int64s
from escapement.names import TopicName
from escapement.protocol import commands as wire


async def find(lines: Lines, topic: str, keys: str | Sequence[str]) -> tuple[str, Int64s]:
    """Look up messages by their dedup keys.

    Args:
      lines: the client's connections to the brokers.
      topic: the name of the topic, in any form.
      keys: one dedup key, or several.

    Returns:
      The full name of the topic, and the offset of the message with each dedup key; -1 if the
      topic does not know the key.

    Raises:
      InvalidRequest: if a key is not a valid dedup key.
      NotFound: if the topic does not exist.
    """
    name = TopicName.parse(topic).full
    wanted = digests([keys] if isinstance(keys, str) else keys)
    parts = [np.zeros(0, np.int64)]
    for _, answer in await ask_in_parts(
        lines, name, wanted, lambda part, number: wire.Find(number, name, part)
    ):
        assert isinstance(answer, wire.Found)
        parts.append(answer.offsets)
    return name, np.concatenate(parts)


async def locate(
    lines: Lines,
    what: What | None,
    topic: str | None,
    key: str | None,
    dedup: str | Sequence[str] | None,
) -> tuple[str, Int64s]:
    """Return the full topic name and the offsets of messages that are named in one of three ways.

    Args:
      lines: the client's connections to the brokers.
      what: messages, ids, receipts or offsets.
      topic: the topic, which may be None if ``what`` names it.
      key: instead of ``what``, the key of messages. The pending messages with it are selected.
      dedup: instead of ``what``, one or several dedup keys. The offset for an unknown one is -1.

    Raises:
      InvalidRequest: if the arguments do not name messages of one topic, in one of these ways.
      NotFound: if the topic of a key or dedup key does not exist.
    """
    if key is not None:
        if what is not None or dedup is not None or topic is None or not key:
            raise InvalidRequest(
                "key= needs topic=, and cannot be combined with messages or dedup="
            )
        what = await select(partial(ask_verb, lines, ""), topic, criteria(key=key))
    if dedup is not None:
        if what is not None or topic is None:
            raise InvalidRequest("dedup= needs topic=, and cannot be combined with messages")
        return await find(lines, topic, dedup)
    if what is None:
        raise InvalidRequest(
            "no messages were given: pass messages, or their dedup keys with dedup="
        )
    return name_messages(what, topic)
