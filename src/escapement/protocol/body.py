"""The body of a frame with messages: a batch in columns, encoded as in the log."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from escapement.errors import RemoteProtocolError
from escapement.message import Buffer, MessageBatch


def decode_body(body: Buffer, *columns: npt.NDArray[Any] | None) -> MessageBatch:
    """Return the batch of a body, as views of ``body``.

    Raises:
      RemoteProtocolError: if the body does not decode, has no messages, or has another height
        than one of the columns.
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
