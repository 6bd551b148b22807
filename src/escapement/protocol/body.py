"""The body of a frame with messages: a batch in columns, encoded as in the log."""

from __future__ import annotations

from escapement.errors import RemoteProtocolError
from escapement.message import Buffer, MessageBatch


def decode_body(body: Buffer) -> MessageBatch:
    """Return the batch of a body, as views of ``body``.

    Raises:
      RemoteProtocolError: if the body does not decode, or has no messages.
    """
    batch = MessageBatch.decode(body)
    if not len(batch):
        raise RemoteProtocolError("a batch has no messages")
    return batch
