"""Conversion of the messages that an application names to a topic and a column of offsets.

An application may name messages by ids, receipts, delivered messages, selections, or offsets. An
id may also be text, ``TOPIC@OFFSET``.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

from escapement.client.delivery import Columns, Row
from escapement.client.producing.receipt import Receipt, Receipts
from escapement.client.selection import Selection
from escapement.errors import InvalidRequest
from escapement.message import Int64s, MessageId
from escapement.names import full_name, read_message_id
from escapement.protocol.limits import MAX_INT64

# The ways to name one message, and to name one or several.
One = MessageId | Receipt | Row | int | str
What = One | Receipts | Columns[Row] | Selection | Int64s | Iterable[One]


def name_messages(what: What, topic: str | None) -> tuple[str, Int64s]:
    """Return the full name of the messages' topic, and the offsets of the messages; int64[n].

    Args:
      what: ids, receipts or delivered messages of one topic, a selection, or offsets.
      topic: the topic of the messages, which may be None unless ``what`` is offsets. Ids of
        another topic are an error.

    Raises:
      InvalidRequest: if ``what`` does not name messages of exactly one topic, or a receipt has
        no message id.
    """
    topics = {full_name(topic)} if topic is not None else set()
    if isinstance(what, Receipts | Columns | Selection):
        topics.add(what.topic)
        found = what.offsets
        if len(found) and found.min() < 0:
            raise InvalidRequest(
                "a receipt of a duplicate has no message id: leave it out, or name the message by"
                " its dedup key"
            )
    elif isinstance(what, np.ndarray):
        if what.ndim != 1 or what.dtype.kind not in "iu":
            raise InvalidRequest("offsets must be a one-dimensional array of integers")
        found = what.astype(np.int64, copy=False)
    else:
        ids = [_id(one) for one in _each(what)]
        named = {id.topic for id in ids if isinstance(id, MessageId)}
        topics.update(full_name(name) for name in named)
        found = np.array([id.offset if isinstance(id, MessageId) else id for id in ids], np.int64)
    if not topics:
        raise InvalidRequest("the topic of the messages is not given: pass topic=")
    if len(topics) > 1:
        raise InvalidRequest(f"the messages must be of one topic, not of {_listed(topics)}")
    if len(found) and found.min() < 0:
        raise InvalidRequest(f"{found.min()} is not a valid offset")
    return topics.pop(), found


def name_message(what: One, topic: str | None) -> tuple[str, int]:
    """Return the full name of one message's topic, and the message's offset.

    Args:
      what: the id, the receipt, the delivered message, or the offset.
      topic: the topic of an offset; see ``name_messages``.

    Raises:
      InvalidRequest: if the arguments do not name one message.
    """
    if not isinstance(what, MessageId | Receipt | Row | Integral | str):
        raise InvalidRequest(f"{what!r} is not a message: pass an id, a receipt or a message")
    full, offsets = name_messages(what, topic)
    return full, int(offsets[0])


def _each(what: Any) -> Iterable[Any]:
    # A str is iterable, but it is one id.
    if isinstance(what, MessageId | Receipt | Row | Integral | str | bytes):
        return [what]
    return what if isinstance(what, Iterable) else [what]


def _id(one: Any) -> MessageId | int:
    if isinstance(one, Receipt | Row):
        if one.id is None:
            raise InvalidRequest(
                "a receipt of a duplicate has no message id: leave it out, or name the message by"
                " its dedup key"
            )
        return one.id
    if isinstance(one, MessageId):
        return one
    if isinstance(one, str):
        return MessageId(*read_message_id(one))
    if not isinstance(one, Integral) or isinstance(one, bool):
        raise InvalidRequest(f"{one!r} is not a message: pass ids, receipts or messages")
    offset = int(one)
    if not 0 <= offset <= MAX_INT64:
        raise InvalidRequest(f"{offset} is not a valid offset")
    return offset


def _listed(topics: set[str]) -> str:
    return " and ".join(sorted(topics))
