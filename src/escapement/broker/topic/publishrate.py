"""How fast a topic, and each of its producers, may be published to.

A batch goes when the one before it has been paid for, and then owes for itself; so a batch
may be larger than what comes together in a moment. Who would have to wait longer than a
bound is refused (``Busy``, which may be tried again), so that a connection is never held up
for long. What was sent before and comes again costs nothing.

Pure: it says how long to wait; the session waits, and reads nothing meanwhile.
"""

from __future__ import annotations

from escapement.broker.tokenbucket import TokenBucket
from escapement.broker.topic.producer import Producer
from escapement.durations import format as duration_text
from escapement.errors import Busy
from escapement.storage.policy import TopicPolicy


class PublishRate:
    """See the module's docstring; one for each topic."""

    __slots__ = ("_bucket",)

    def __init__(self) -> None:
        self._bucket: TokenBucket | None = None

    def hold_ms(
        self, policy: TopicPolicy, producer: Producer, fresh: int, now_ms: int, most_ms: int
    ) -> int:
        """Take a batch into account; how long it is to be held back.

        Args:
          fresh: how many messages of it are new.
          most_ms: it is refused rather than held back for longer.

        Raises:
          Busy: it was not taken into account.
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
                f"publishing is over its maximum rate by {duration_text(wait_ms)}: try again then"
            )
        for bucket in buckets:
            bucket.spend(fresh, now_ms)
        return wait_ms

    def wait_ms(self, policy: TopicPolicy, count: int, now_ms: int) -> int:
        """Take messages that no producer sends into account, unless they are to wait so long."""
        self._bucket = _bucket(self._bucket, policy.max_publish_rate, now_ms)
        if self._bucket is None:
            return 0
        wait_ms = self._bucket.wait_ms(1, now_ms)
        if not wait_ms:
            self._bucket.spend(count, now_ms)
        return wait_ms


def _bucket(bucket: TokenBucket | None, rate: float, now_ms: int) -> TokenBucket | None:
    """The bucket of a rate, which may have changed; None for no limit."""
    if not rate:
        return None
    if bucket is None:
        return TokenBucket(rate, now_ms)
    bucket.set_rate(rate, now_ms)
    return bucket
