"""Publish rates, compared with naive token buckets for random batches of several producers."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.broker.token_bucket import BURST_MS
from escapement.broker.topic.producer import Producer
from escapement.broker.topic.publish_rate import PublishRate
from escapement.errors import Busy
from escapement.storage.catalog.policy import TopicPolicy

# Messages per second; 0 is unlimited.
RATES = st.sampled_from([0.0, 0.5, 1.0, 7.0, 50.0, 1000.0])
MOST_MS = 5_000
# The time since the previous batch, the producer, and the number of new messages.
BATCHES = st.lists(
    st.tuples(st.integers(0, 3_000), st.integers(0, 2), st.integers(0, 200)), max_size=30
)


@dataclass
class Bucket:
    """A naive token bucket, which counts in fractions."""

    rate: float
    level: Fraction = field(init=False)

    def __post_init__(self) -> None:
        self.level = self.most = max(Fraction(1), Fraction(self.rate) * BURST_MS / 1000)

    def fill(self, passed_ms: int) -> None:
        self.level = min(self.level + Fraction(self.rate) * passed_ms / 1000, self.most)

    def wait_ms(self) -> int:
        """Return the wait for one token."""
        return max(ceil((1 - self.level) * 1000 / Fraction(self.rate)), 0)


@given(RATES, RATES, BATCHES)
def test_batch_waits_for_a_token_of_the_topic_and_of_its_producer(
    rate: float, own_rate: float, batches: list[tuple[int, int, int]]
) -> None:
    """A refused batch costs nothing, and a batch without new messages does not wait."""
    policy = TopicPolicy(max_publish_rate=rate, max_publish_rate_per_producer=own_rate)
    limits = PublishRate()
    producers = [Producer.new(number, f"p{number}") for number in range(3)]
    shared = Bucket(rate)
    own = [Bucket(own_rate) for _ in producers]
    now_ms = 0
    for passed_ms, number, fresh in batches:
        now_ms += passed_ms
        for bucket in (shared, *own):
            bucket.fill(passed_ms)
        limiting = [bucket for bucket in (shared, own[number]) if bucket.rate]
        wait_ms = max((bucket.wait_ms() for bucket in limiting), default=0) if fresh else 0
        if wait_ms > MOST_MS:
            with pytest.raises(Busy, match="over its maximum rate; try again in"):
                limits.hold_ms(policy, producers[number], fresh, now_ms, MOST_MS)
            continue
        assert limits.hold_ms(policy, producers[number], fresh, now_ms, MOST_MS) == wait_ms
        for bucket in limiting:
            bucket.level -= fresh


def test_error_of_a_refused_batch_has_the_time_to_wait() -> None:
    limits, producer = PublishRate(), Producer.new(1, "p")
    policy = TopicPolicy(max_publish_rate=1.0)
    assert limits.hold_ms(policy, producer, 10, 0, MOST_MS) == 0
    for _ in range(2):
        with pytest.raises(Busy, match="over its maximum rate; try again in 10s"):
            limits.hold_ms(policy, producer, 1, 0, MOST_MS)
    assert limits.hold_ms(policy, producer, 1, 5_000, MOST_MS) == MOST_MS


def test_messages_without_a_producer_wait_and_then_cost_tokens() -> None:
    """Messages of the inbox do so, which the topic's rate limits too."""
    limits = PublishRate()
    policy = TopicPolicy(max_publish_rate=2.0, max_publish_rate_per_producer=1.0)
    assert limits.wait_ms(policy, 5, 0) == 0
    assert limits.wait_ms(policy, 5, 0) == 2_500
    assert limits.wait_ms(policy, 5, 2_499) == 1
    assert limits.wait_ms(policy, 5, 2_500) == 0
    assert limits.wait_ms(TopicPolicy(), 5, 2_500) == 0
