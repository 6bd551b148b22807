"""The outbox: the messages of a producer until they are durable or have failed.

A *publish request* is a batch of messages that is sent as one Publish command. Single messages are
collected in an open publish request, the *draft*. When the draft is closed, its columns are made
and nothing is added to it any more. A publish request is *settled* when the broker's receipt says
that it is durable, or when it has failed: the broker refuses it with an error that is not
retryable, or its deadline passes. Until then it is sent again after each retryable refusal and
after each reconnect.

The messages of a producer are numbered; the number is called *sequence*. Publish requests are sent
in the order of their sequences. Each carries the sequence of the message before its first
(``after``). So the broker never stores a request if it has refused the request before it (see
``Publish``).

Batching follows Nagle's rule with a bound. While no publish request is unanswered, a message is
sent the next time the client's pump runs, so that messages of many tasks share a request.
Otherwise messages are collected until the earlier requests are answered, ``linger_s`` has passed,
or the draft is full.

This module is pure: it takes the time as an argument and sends nothing. Invariants: ``_requests``
has exactly the closed publish requests that are not settled, in order. The first ``_under_way`` of
them are sent and unanswered. ``messages`` and ``size_bytes`` count all unsettled messages, with
those of the draft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf

import numpy as np

from escapement.client.connection.retry import Retry
from escapement.client.producing.producer_bounds import Bounds
from escapement.client.producing.publish_request import (
    ROW_BYTES,
    Draft,
    NewMessage,
    PublishRequest,
    scattered,
)
from escapement.client.producing.replace import ReplaceColumns
from escapement.dedup import Digests
from escapement.errors import Disconnected, EscapementError, InvalidRequest, LimitExceeded
from escapement.message import Int64s, MessageBatch, Times, UInt8s, cuts


class Outbox:
    """The messages of one producer that are neither durable nor failed.

    Args:
      producer: the name of the producer, which decides how its messages are spread.
    """

    def __init__(self, bounds: Bounds, retry: Retry, producer: str = "") -> None:
        self._producer = producer
        self.bounds = bounds
        self.next_sequence = 0
        self.stored = -1  # the highest sequence that is known to be durable
        self.messages = 0
        self.size_bytes = 0
        self._draft: Draft | None = None
        self._requests: deque[PublishRequest] = deque()
        self._under_way = 0
        self._retry = retry

    @property
    def empty(self) -> bool:
        """Whether all messages are durable or have failed."""
        return not self._requests and self._draft is None

    @property
    def full(self) -> bool:
        """Whether callers must wait for receipts before they add more messages."""
        return (
            self.messages >= self.bounds.in_flight_messages
            or self.size_bytes >= self.bounds.in_flight_bytes
        )

    @property
    def last(self) -> PublishRequest | None:
        """The newest unsettled publish request, for which a flush waits; None if there is none."""
        if self._draft is not None:
            return self._draft.request
        return self._requests[-1] if self._requests else None

    @property
    def refusal(self) -> EscapementError | None:
        """The latest retryable error by which the broker refused the oldest publish request."""
        return self._requests[0].refusal if self._requests else None

    # -- adding messages -----------------------------------------------------------

    def add(
        self, message: NewMessage, sequence: int | None, clock: Callable[[], float]
    ) -> tuple[PublishRequest, int]:
        """Add one message to the draft; O(1).

        Args:
          message: the message.
          sequence: its number, or None for the next one.
          clock: returns the time in seconds on the clock of the event loop. It is called only if
            a new draft begins.

        Returns:
          The publish request that has the message, and the message's row in it. If a message
          with this number is durable already, the request is settled.

        Raises:
          LimitExceeded: if the message is larger than the broker accepts.
          InvalidRequest: if ``sequence`` has been used for a message that is not known to be
            durable.
        """
        size = message.size_bytes
        if size > self.bounds.message_bytes:
            raise LimitExceeded(
                f"a message of {size} bytes is over the limit of {self.bounds.message_bytes}"
            )
        number, settled = self._number(sequence, 1)
        if settled is not None:
            return settled, 0
        draft = self._draft
        if draft is not None and (
            draft.size_bytes + size > self.bounds.batch_bytes or draft.next_sequence != number
        ):
            self._close()
            draft = None
        if draft is None:
            now_s = clock()
            draft = self._draft = Draft(number, now_s, now_s + self.bounds.send_timeout_s)
        row = draft.add(message, size)
        self.messages += 1
        self.size_bytes += size
        if row + 1 >= self.bounds.batch_messages:
            self._close()
        return draft.request, row

    def add_batch(
        self,
        batch: MessageBatch,
        times: Times,
        sequence: int | None,
        now_s: float,
        dedup: Digests | None = None,
        spread_ms: int = 0,
        replace: ReplaceColumns | None = None,
    ) -> list[PublishRequest]:
        """Add a batch, which closes the draft.

        Args:
          batch: the messages.
          times: their delays or delivery times.
          sequence: the number of the first message, or None for the next number.
          now_s: the time on the clock of the event loop.
          dedup: the digests of their dedup keys.
          spread_ms: the span over which the messages are scattered; 0 for none.
          replace: their replace keys.

        Returns:
          The publish requests that have the messages, in order: several if the batch is larger
          than one request may be. If all messages are durable already, it is one settled
          request.

        Raises:
          LimitExceeded: if a message is larger than the broker accepts.
          InvalidRequest: if ``sequence`` has been used for messages that are not known to be
            durable.
        """
        runs = self._runs(batch)
        number, settled = self._number(sequence, len(batch))
        if settled is not None:
            return [settled]
        self._close()
        if spread_ms:
            spreads_ms = np.full(len(batch), spread_ms)
            times = scattered(times, spreads_ms, self._producer, number, dedup)
        requests: list[PublishRequest] = []
        for low, high in runs:
            piece, piece_times, digests, replaces = batch, times, dedup, replace
            if len(runs) > 1:
                piece, piece_times = batch.part(low, high), times.take(slice(low, high))
                digests = None if dedup is None else dedup[low:high]
                replaces = None if replace is None else replace.part(slice(low, high))
            request = PublishRequest(number + low, now_s + self.bounds.send_timeout_s)
            size_bytes = piece.size_bytes + ROW_BYTES * len(piece)
            request.fill(piece, piece_times, digests, size_bytes, replaces)
            self.messages += request.count
            self.size_bytes += request.size_bytes
            requests.append(request)
        self._requests += requests
        return requests

    def _number(self, sequence: int | None, count: int) -> tuple[int, PublishRequest | None]:
        """Assign numbers to ``count`` messages, and return the number of the first one.

        If messages with these numbers are durable already, no numbers are assigned, and the
        second result is a settled publish request for the messages. Otherwise it is None.
        """
        number = self.next_sequence if sequence is None else sequence
        if number < self.next_sequence:
            if number + count - 1 > self.stored or number < 0:
                raise InvalidRequest(
                    f"sequence {number} was used before: the next one is {self.next_sequence}"
                )
            stored = PublishRequest(number, inf)
            stored.count = count
            stored.settle(-1, True)
            return number, stored
        self.next_sequence = number + count
        return number, None

    def _runs(self, batch: MessageBatch) -> list[tuple[int, int]]:
        """Return the bounds ``(low, high)`` of the rows of each publish request for a batch."""
        most, most_bytes = self.bounds.batch_messages, self.bounds.batch_bytes
        if len(batch) <= most and batch.size_bytes <= most_bytes:
            return [(0, len(batch))]
        sizes = _row_bytes(batch)
        largest = int(sizes.argmax())
        if sizes[largest] > self.bounds.message_bytes:
            raise LimitExceeded(
                f"message {largest} of a batch has {sizes[largest]} bytes, "
                f"over the limit of {self.bounds.message_bytes}"
            )
        return list(cuts(sizes, most_bytes, most))

    def _close(self) -> None:
        if self._draft is not None:
            self._requests.append(self._draft.close(self._producer))
            self._draft = None

    # -- sending -------------------------------------------------------------------

    def take(self, now_s: float) -> tuple[list[tuple[PublishRequest, int]], float]:
        """Return the publish requests to send at ``now_s``, and mark them as sent.

        Returns:
          The requests, each with its ``after``: the sequence of the message before its first.
          Then the time at which to call again, on the same clock (infinity: not by itself).
        """
        if now_s < self._retry.at_s:
            return [], inf if self.empty else self._retry.at_s
        draft = self._draft
        if draft is not None and (
            not self._requests or now_s >= draft.since_s + self.bounds.linger_s
        ):
            self._close()
        found = []
        after = (
            self._requests[self._under_way - 1].last_sequence if self._under_way else self.stored
        )
        for index in range(self._under_way, len(self._requests)):
            request = self._requests[index]
            request.sent = True
            found.append((request, min(after, request.sequence - 1)))
            after = request.last_sequence
        self._under_way = len(self._requests)
        draft = self._draft
        return found, inf if draft is None else draft.since_s + self.bounds.linger_s

    # -- answers -------------------------------------------------------------------

    def receipt(
        self,
        sequence: int,
        base_offset: int,
        duplicate: bool,
        offsets: Int64s | None = None,
        repeated: UInt8s | None = None,
        previous: Int64s | None = None,
    ) -> None:
        """Settle the publish request that begins at ``sequence`` as durable.

        The other arguments are the fields of the Receipt command. A receipt for an unknown
        request is ignored.
        """
        request = self._find(sequence)
        if request is not None:
            self._retry.succeeded()
            self.stored = max(self.stored, request.last_sequence)
            self._remove(request)
            request.settle(base_offset, duplicate, offsets, repeated, previous)

    def refused(self, sequence: int, error: EscapementError, now_s: float) -> None:
        """Send a refused publish request again later if ``error`` is retryable; otherwise fail it.

        ``sequence`` is that of its first message. After a retryable error, the broker also
        refuses the requests that were sent after this one (``sequence_gap``). So they are marked
        as unsent at once. If the refusal of such a request arrives only after the request was
        sent again, it is sent once more. The broker recognises the repetition by its sequence.
        """
        request = self._find(sequence)
        if request is None or not request.sent:
            return
        if not error.retryable:
            self._remove(request)
            request.fail(error)
            return
        while self._under_way and request.sent:
            self._under_way -= 1
            self._requests[self._under_way].sent = False
        request.refusal = error
        self._retry.failed(now_s)

    def lost(self) -> None:
        """Mark all publish requests as unsent, because the connection is lost."""
        for request in self._requests:
            if request.sent:
                request.sent = False
                request.refusal = None  # it is not known whether the broker has stored it
        self._under_way = 0
        self._retry.at_s = -inf

    def resume(self, last_sequence: int) -> None:
        """Continue on a new connection: the broker has stored the messages up to ``last_sequence``.

        Publish requests that the broker has stored settle as durable, as duplicates with unknown
        offsets. If it has stored the first messages of a request, these are removed from it.
        """
        assert not self._under_way, "resumed without having lost the connection"
        self.stored = last_sequence
        self.next_sequence = max(self.next_sequence, last_sequence + 1)
        for request in list(self._requests):
            if request.last_sequence <= last_sequence:
                self._remove(request)
                request.settle(-1, True)
            elif request.sequence <= last_sequence:
                before = request.count, request.size_bytes
                request.trim(last_sequence - request.sequence + 1)
                self.messages -= before[0] - request.count
                self.size_bytes -= before[1] - request.size_bytes

    def expire(self, now_s: float) -> float:
        """Fail the publish requests whose deadline is not later than ``now_s``.

        Returns:
          The next deadline; infinity if no message is unsettled.
        """
        while self._requests and self._requests[0].deadline_s <= now_s:
            request = self._requests[0]
            self._remove(request)
            request.fail(self._too_late(request))
        draft = self._draft
        if not self._requests and draft is not None and draft.request.deadline_s <= now_s:
            self._close()
            return self.expire(now_s)
        last = self._requests[0] if self._requests else draft.request if draft else None
        return inf if last is None else last.deadline_s

    def fail(self, error: EscapementError) -> None:
        """Settle all publish requests as failed with ``error``."""
        self._close()
        for request in list(self._requests):
            self._remove(request)
            request.fail(error)

    def _too_late(self, request: PublishRequest) -> EscapementError:
        wait_s = self.bounds.send_timeout_s
        if request.refusal is not None and not request.sent:
            return type(request.refusal)(f"gave up after {wait_s:g} s: {request.refusal}")
        return Disconnected(
            f"no receipt within {wait_s:g} s: whether the messages from sequence "
            f"{request.sequence} on are stored is not known"
        )

    def _find(self, sequence: int) -> PublishRequest | None:
        return next((p for p in self._requests if p.sequence == sequence), None)

    def _remove(self, request: PublishRequest) -> None:
        if request.sent:
            self._under_way -= 1
        if self._requests[0] is request:
            self._requests.popleft()
        else:
            self._requests.remove(request)
        self.messages -= request.count
        self.size_bytes -= request.size_bytes


def _row_bytes(batch: MessageBatch) -> Int64s:
    """Return the size in bytes of each message of a batch on the wire; int64[n]."""
    columns = (batch.payloads, batch.keys, batch.properties, batch.groups)
    lengths_bytes = 4 * sum(column is not None for column in columns)
    return batch.string_sizes() + lengths_bytes + (batch.priorities is not None)
