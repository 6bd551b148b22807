"""The sequences of a producer: deduplication, refusals and fencing."""

from __future__ import annotations

import pytest

from escapement.broker.topic.producer import Producer
from escapement.errors import Busy, ProducerFenced, SequenceGap


def opened(last_sequence: int = -1) -> tuple[Producer, object]:
    producer, holder = Producer(1, "p", 0, last_sequence, -1), object()
    producer.take_over(holder, 1)
    return producer, holder


def test_resent_batch_is_skipped_and_an_overlapping_one_trimmed() -> None:
    """B3: resent batches are trimmed by their range of sequences."""
    producer, holder = opened(last_sequence=9)
    assert producer.admit(holder, 0, 10, -1) == 10
    assert producer.admit(holder, 5, 10, 4) == 5
    assert producer.admit(holder, 10, 3, 9) == 0


def test_batch_under_way_is_not_confirmed_as_stored() -> None:
    """B3: a repetition is confirmed only when the original is committed."""
    producer, holder = opened()
    producer.queued(9)
    with pytest.raises(Busy):
        producer.admit(holder, 0, 10, -1)
    producer.committed(9, 109)
    assert producer.admit(holder, 0, 10, -1) == 10


def test_later_batches_are_refused_until_a_refused_batch_is_resent() -> None:
    """B3: a refused batch does not count as a repetition because a later one was stored."""
    producer, holder = opened()
    producer.queued(9)
    producer.queued(19)
    producer.refused(0)
    producer.refused(10)
    with pytest.raises(SequenceGap):
        producer.admit(holder, 20, 5, 19)
    assert producer.admit(holder, 0, 10, -1) == 0
    producer.queued(9)
    producer.committed(9, 9)
    assert producer.admit(holder, 10, 10, 9) == 0


def test_refusal_after_a_batch_of_unknown_outcome_keeps_that_batch() -> None:
    producer, holder = opened()
    producer.queued(9)  # its COMMIT's reply was lost
    producer.queued(19)
    producer.refused(10)
    producer.committed(9, 9)
    assert producer.last_sequence == producer.queued_sequence == 9
    assert producer.admit(holder, 10, 10, 9) == 0


def test_newer_holder_of_a_name_fences_the_older() -> None:
    """B3: producers with one name."""
    producer, older = opened()
    newer = object()
    assert producer.take_over(newer, 2) is older
    with pytest.raises(ProducerFenced):
        producer.admit(older, 0, 1, -1)
    assert producer.admit(newer, 0, 1, -1) == 0
