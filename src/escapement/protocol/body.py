"""The body of a frame of messages: a batch in columns, as it lies in the log too."""

from __future__ import annotations

from escapement.errors import RemoteProtocolError
from escapement.message import Buffer, MessageBatch


def decode_body(body: Buffer) -> MessageBatch:
    """The batch, as views of ``body``.

    Raises:
      RemoteProtocolError: if it is none, or is empty.
    """
    batch = MessageBatch.decode(body)
    if not len(batch):
        raise RemoteProtocolError("a batch has no messages")
    return batch
