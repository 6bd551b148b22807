"""The body of a frame with messages: an encoded batch, in the same encoding as in the log."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from escapement.errors import RemoteProtocolError
from escapement.message import Buffer, MessageBatch


def decode_body(body: Buffer, *columns: npt.NDArray[Any] | None) -> MessageBatch:
    """Decode a body to a batch of messages, whose columns are views of ``body``.

    Args:
      body: the encoded batch.
      columns: the other columns of the frame, which must have one row per message.

    Raises:
      RemoteProtocolError: if the body does not decode or has no messages, or a column has
        another number of rows.
    """
    batch = MessageBatch.decode(body)
    if not len(batch):
        raise RemoteProtocolError("a batch has no messages")
    for column in columns:
        if column is not None and len(column) != len(batch):
            raise RemoteProtocolError(
                f"a batch of {len(batch)} messages came with a column of {len(column)} rows"
            )
    return batch
