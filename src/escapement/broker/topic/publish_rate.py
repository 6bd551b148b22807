"""Limits on the publish rate of a topic and of each of its producers.

Each limit is a token bucket, and each message costs a token. A batch passes as soon as one token is
available, and may then leave the bucket in debt. So a batch may have more messages than there are
tokens. A batch that would wait longer than a bound is refused (``Busy``, which is retryable), so a
connection is never held up for long. Messages that are sent again cost nothing.

Pure: this module returns how long to wait. The session waits, and reads nothing meanwhile.
"""

from __future__ import annotations

from escapement.broker.token_bucket import TokenBucket
from escapement.broker.topic.producer import Producer
from escapement.durations import format as duration_text
from escapement.errors import Busy
from escapement.storage.catalog.policy import TopicPolicy


class PublishRate:
    """The publish rates of one topic and of its producers."""

    __slots__ = ("_bucket",)

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None

    def hold_ms(
        self, policy: TopicPolicy, producer: Producer, fresh: int, now_ms: int, most_ms: int
    ) -> int:
        """Take tokens for a producer's batch; return how long the session must hold it back.

        Args:
          fresh: how many messages of the batch are new.
          most_ms: the longest time to hold the batch back; a batch that must wait longer is
            refused.

        Raises:
          Busy: if the batch is refused; no tokens were taken.
        """
        self._bucket = _bucket(self._bucket, policy.max_publish_rate, now_ms)
        own = _bucket(producer.bucket, policy.max_publish_rate_per_producer, now_ms)
        producer.bucket = own
        if not fresh:
            return 0
        buckets = [bucket for bucket in (self._bucket, own) if bucket is not None]
        wait_ms = max((bucket.wait_ms(1, now_ms) for bucket in buckets), default=0)
        if wait_ms > most_ms:
            raise Busy(
                f"publishing is over its maximum rate; try again in {duration_text(wait_ms)}"
            )
        for bucket in buckets:
            bucket.spend(fresh, now_ms)
        return wait_ms

    def wait_ms(self, policy: TopicPolicy, count: int, now_ms: int) -> int:
        """Return how long messages without a producer must wait; take their tokens if it is 0."""
        self._bucket = _bucket(self._bucket, policy.max_publish_rate, now_ms)
        if self._bucket is None:
            return 0
        wait_ms = self._bucket.wait_ms(1, now_ms)
        if not wait_ms:
            self._bucket.spend(count, now_ms)
        return wait_ms


def _bucket(bucket: TokenBucket | None, rate: float, now_ms: int) -> TokenBucket | None:
    """Return ``bucket``, or a new one, set to ``rate``; None if the rate is unlimited."""
    if not rate:
        return None
    if bucket is None:
        return TokenBucket(rate, now_ms)
    bucket.set_rate(rate, now_ms)
    return bucket
