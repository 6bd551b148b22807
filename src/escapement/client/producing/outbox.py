"""The messages of a producer until they are durable: batching, numbering and resending.

Single messages are collected in an open *publish request* (``Draft``). When it is closed, it
becomes one Publish command (``PublishRequest``). A publish request that is sent becomes durable (a
receipt) or is refused for good. Otherwise it is sent again, in the order of sequences, until
its deadline.

Batching follows Nagle's rule with a bound. While no publish request is unanswered, a message
is sent at once, that is, when the pump runs, so that messages of many tasks share a request.
Otherwise messages are collected until the earlier requests are answered, ``linger_s`` has
passed, or the request is full.

Each publish request carries the sequence of its predecessor (``after``), so that the broker
never stores a request whose predecessor it has refused (see ``Publish``).

This module is pure: it takes the time as an argument and sends nothing. Invariants:
``_requests`` holds exactly the closed publish requests that are not settled, in order; the
first ``_under_way`` of them are sent and unanswered; ``messages`` and ``size_bytes`` count
these and the open one.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

from escapement.client.connection.retry import Retry
from escapement.client.producing.producer_bounds import Bounds
from escapement.client.producing.publish_request import Draft, NewMessage, PublishRequest
from escapement.dedup import Digests
from escapement.errors import Disconnected, EscapementError, InvalidRequest, LimitExceeded
from escapement.message import Int64s, MessageBatch, Times, UInt8s, cuts

# The size of a message beside its bytes: lengths, times, a dedup key, list entries.
_ROW_BYTES: Final = 48


class Outbox:
    """The unsettled messages of one producer."""

    def __init__(self, bounds: Bounds, retry: Retry) -> None:
        self.bounds = bounds
        self.next_sequence = 0
        self.stored = -1  # the last sequence known to be durable
        self.messages = 0
        self.size_bytes = 0
        self._draft: Draft | None = None
        self._requests: deque[PublishRequest] = deque()
        self._under_way = 0
        self._retry = retry

    @property
    def empty(self) -> bool:
        """Whether all messages are settled."""
        return not self._requests and self._draft is None

    @property
    def full(self) -> bool:
        """Whether further messages must wait for receipts."""
        return (
            self.messages >= self.bounds.in_flight_messages
            or self.size_bytes >= self.bounds.in_flight_bytes
        )

    @property
    def last(self) -> PublishRequest | None:
        """The newest publish request, or None; a flush waits for it."""
        if self._draft is not None:
            return self._draft.request
        return self._requests[-1] if self._requests else None

    @property
    def refusal(self) -> EscapementError | None:
        """The last retryable refusal of the oldest publish request, or None."""
        return self._requests[0].refusal if self._requests else None

    # -- adding messages -----------------------------------------------------------

    def add(
        self, message: NewMessage, sequence: int | None, now_s: float
    ) -> tuple[PublishRequest, int]:
        """Add one message; return its publish request and its row there; O(1).

        Raises:
          LimitExceeded: if the message is larger than the broker accepts.
          InvalidRequest: if ``sequence`` has been used for another message.
        """
        size = _ROW_BYTES + len(message.payload) + len(message.key)
        size += len(message.properties) + len(message.group)
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
    ) -> list[PublishRequest]:
        """Add a batch; return its publish requests, several if the limits require it.

        Raises:
          LimitExceeded: if a message is larger than the broker accepts.
          InvalidRequest: if ``sequence`` has been used for another message.
        """
        runs = self._runs(batch)
        number, settled = self._number(sequence, len(batch))
        if settled is not None:
            return [settled]
        self._close()
        requests: list[PublishRequest] = []
        for low, high in runs:
            piece, piece_times = batch.part(low, high), times.take(slice(low, high))
            digests = None if dedup is None else dedup[low:high]
            request = PublishRequest(number + low, now_s + self.bounds.send_timeout_s)
            request.fill(piece, piece_times, digests, piece.size_bytes + _ROW_BYTES * len(piece))
            self.messages += request.count
            self.size_bytes += request.size_bytes
            requests.append(request)
        self._requests += requests
        return requests

    def _number(self, sequence: int | None, count: int) -> tuple[int, PublishRequest | None]:
        """Return the number of the next message.

        If all messages are stored already, return their settled publish request as well.
        """
        number = self.next_sequence if sequence is None else sequence
        if number < self.next_sequence:
            if number + count - 1 > self.stored or number < 0:
                raise InvalidRequest(
                    f"sequence {number} is used: the next of this producer is {self.next_sequence}"
                )
            stored = PublishRequest(number, inf)
            stored.count = count
            stored.settle(-1, True)
            return number, stored
        self.next_sequence = number + count
        return number, None

    def _runs(self, batch: MessageBatch) -> list[tuple[int, int]]:
        """Return the runs of rows of a batch that are sent together."""
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
            self._requests.append(self._draft.close())
            self._draft = None

    # -- sending -------------------------------------------------------------------

    def take(self, now_s: float) -> tuple[list[tuple[PublishRequest, int]], float]:
        """Return the publish requests to send now, and the time for the next call.

        Each request is paired with its ``after``.
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
    ) -> None:
        """Settle the publish request from ``sequence`` on as durable; ignore an unknown one."""
        request = self._find(sequence)
        if request is not None:
            self._retry.succeeded()
            self.stored = max(self.stored, request.last_sequence)
            self._remove(request)
            request.settle(base_offset, duplicate, offsets, repeated)

    def refused(self, sequence: int, error: EscapementError, now_s: float) -> None:
        """Handle the refusal of a publish request: resend it later if retryable, or fail it.

        The broker also refuses the requests sent after it (``sequence_gap``), so they are
        marked unsent without waiting for these refusals. If such a refusal arrives after a
        request was resent, the request is sent once more; the broker recognises the
        repetition by its sequence.
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
                request.refusal = None  # it may be stored or not
        self._under_way = 0
        self._retry.at_s = -inf

    def resume(self, last_sequence: int) -> None:
        """Continue on a new connection; the broker has stored up to ``last_sequence``.

        Publish requests that are stored settle as duplicates with unknown offsets. A request
        that is stored in part is trimmed.
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
        """Fail the publish requests past their deadline; return the next deadline."""
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
        """Fail all publish requests with ``error``."""
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
