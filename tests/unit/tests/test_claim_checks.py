"""The checks of limits, exclusive consumers and key ranges find each broken promise."""

from __future__ import annotations

from typing import Any

from escapement import slot_of
from histories.history import (
    Consumer,
    Message,
    Way,
)
from simulation.checks.claiming import ALL, AUTO, Claim, ClaimCheck, Stay
from simulation.checks.limiting import LimitCheck, Limits
from support.story import Cable, Story

# -- limits of deliveries -----------------------------------------------------------------


def under_limits(story: Story, **limits: Any) -> tuple[LimitCheck, list[Message]]:
    """Store three messages for a subscription whose limits hold from the beginning on."""
    check = LimitCheck({"s": [Limits(from_ms=0, **limits)]}, story.terms)
    return check, [story.send(offset) for offset in range(3)]


def test_delivery_beyond_the_messages_in_flight_is_found() -> None:
    """Q3: an acknowledgement makes room, and so does the end of a connection."""
    story = Story()
    check, messages = under_limits(story, max_in_flight=2)
    arrivals = [story.deliver(message, acks=False) for message in messages[:2]]
    story.wait(0.1)
    late = story.deliver(messages[2], acks=False)
    wrong = f"limits: {late} came as one of 3 in flight at once, under {check.limits['s'][0]}"
    assert list(check.violations(story.history)) == [wrong]
    arrivals[0].acked_s = late.sent_s
    assert list(check.violations(story.history)) == []
    arrivals[0].acked_s = None
    assert isinstance(arrivals[1].way.connection, Cable)
    arrivals[1].way.connection.ended_s = late.sent_s
    assert list(check.violations(story.history)) == []


def test_deliveries_of_an_earlier_owner_do_not_count() -> None:
    """Q3: a broker that takes a topic over knows nothing of the messages in flight. It has its own
    limit. The earlier owner may send nothing more.
    """
    story = Story()
    check, messages = under_limits(story, max_in_flight=1, max_rate=0.002)
    story.deliver(messages[0], acks=False)
    story.wait(0.01)
    story.terms.take(story.now_s(), "other")
    stale = story.deliver(messages[1], acks=False)
    assert list(check.violations(story.history)) == [
        f"limits: {stale} was sent by an earlier owner"
    ]
    story.host = "other"
    story.history.arrivals.remove(stale)
    story.deliver(messages[1], acks=False)
    assert list(check.violations(story.history)) == []
    story.deliver(messages[2], acks=False)
    found = [line.partition(" came as one of ")[2] for line in check.violations(story.history)]
    assert [line[:12] for line in found] == ["2 in flight ", "2 messages i"]


def test_delivery_faster_than_the_rate_is_found() -> None:
    """Q3: in t seconds, a rate allows rate * (t + 0.1) + 1 messages, and some more on a slow
    disk.
    """
    for pause_s, is_right in ((370, False), (390, True)):
        story = Story()
        check, messages = under_limits(story, max_rate=0.002)
        for message in messages:
            story.deliver(message)
            story.wait(pause_s / 3600)
        found = [line for line in check.violations(story.history) if "came as one of 2" in line]
        assert len(found) == (0 if is_right else 2)


def test_limits_that_are_being_changed_allow_both() -> None:
    """A broker may obey the earlier or the later limits meanwhile."""
    story = Story()
    check, messages = under_limits(story, max_in_flight=1, max_rate=0.002)
    check.limits["s"].append(Limits(called_ms=story.at_ms))
    story.wait()
    for message in messages:
        story.deliver(message, acks=False)
    assert list(check.violations(story.history)) == []


# -- exclusive consumers and key ranges ---------------------------------------------------

# Their slots are 9,680 and 33,824.
LOW_KEY, HIGH_KEY = "low", "high"


def claimed(story: Story, *claims: Claim) -> tuple[ClaimCheck, list[Stay]]:
    """Let consumers with these claims in, one after the other."""
    check = ClaimCheck(story.terms)
    for claim in claims:
        check.stays.append(Stay("s", claim, story.now_s(), consumer=Consumer("s")))
        join(story, check.stays[-1])
        story.wait()
    return check, check.stays


def join(story: Story, stay: Stay) -> None:
    stay.joins.append((story.now_s(), Way(Cable(), story.host)))


def keyed(story: Story, offset: int, key: str) -> Message:
    message = story.send(offset)
    message.key = key
    return message


def test_overlapping_claims_that_are_held_together_are_found() -> None:
    """V16: two exclusive consumers, or two that want the same keys, are never there together."""
    for first, second, is_right in (
        (ALL, ALL, False),
        ((0, 9), (9, 20), False),
        ((0, 9), (10, 20), True),
        ((0, 9), AUTO, True),
        (AUTO, AUTO, True),
    ):
        story = Story()
        check, _ = claimed(story, first, second)
        wrong = f"claim: s let in {first} and {second} together"
        assert list(check.violations(story.history)) == ([] if is_right else [wrong])


def test_claim_is_free_after_its_consumer_has_left_or_lost_its_connection() -> None:
    """It is also free after a take-over."""
    for end in ("leave", "cut", "take"):
        story = Story()
        check, (first,) = claimed(story, ALL)
        assert first.consumer is not None
        if end == "leave":
            first.consumer.left_s = story.now_s()
        elif end == "cut":
            first.joins[0][1].connection.ended_s = story.now_s()
        else:
            story.host = "other"
            story.terms.take(story.now_s(), "other")
        second = Stay("s", ALL, story.now_s(), consumer=Consumer("s"))
        check.stays.append(second)
        join(story, second)
        assert list(check.violations(story.history)) == []
        story.wait()
        first.consumer.left_s = None
        join(story, first)
        wrong = "claim: s let in all and all together"
        assert list(check.violations(story.history)) == [wrong]


def refuse(story: Story, check: ClaimCheck, claim: Claim) -> list[str]:
    """Refuse a consumer now, and return what the check finds about that."""
    check.found.clear()
    check.refused(Stay("s", claim, story.now_s()), story.host, story.now_s())
    return check.found


def test_claim_that_is_refused_although_it_is_free_is_found() -> None:
    """V16: a claim is refused only while another consumer may have it."""
    story = Story()
    check, (first,) = claimed(story, (0, 9))
    assert refuse(story, check, (9, 20)) == []
    wrong = f"claim: s refused (10, 20) at {story.now_s():.0f} s, which no consumer had"
    assert refuse(story, check, (10, 20)) == [wrong]
    first.closed_s = story.now_s()
    story.wait()
    assert refuse(story, check, (9, 20)) == []  # its connection may still count
    first.confirmed = True
    assert len(refuse(story, check, (9, 20))) == 1
    first.asked_again_s = [1.0]
    assert refuse(story, check, (9, 20)) == []  # so may an earlier one
    story.wait(48)
    assert len(refuse(story, check, (9, 20))) == 1


def test_claim_that_is_refused_because_of_a_consumer_of_the_earlier_owner_is_found() -> None:
    """A take-over ends all claims. An earlier owner may refuse what it likes."""
    story = Story()
    check, (first,) = claimed(story, ALL)
    story.terms.take(story.now_s(), "other")
    story.wait()
    assert refuse(story, check, ALL) == []
    story.host = "other"
    assert len(refuse(story, check, ALL)) == 1
    first.asked_again_s = [story.now_s()]
    assert refuse(story, check, ALL) == []
    first.asked_again_s = []
    first.joins.clear()  # it waits to be let in, and asks again whenever it loses its connection
    assert refuse(story, check, ALL) == []


def test_message_of_a_key_that_another_consumer_claims_is_found() -> None:
    """V16: a consumer with a key range gets its keys and no others, and messages without a key."""
    assert slot_of(LOW_KEY) < 30_000 < slot_of(HIGH_KEY)
    low: Claim = (0, 30_000)
    for claims, key, at, is_right in (
        ((low,), LOW_KEY, 0, True),
        ((low,), HIGH_KEY, 0, False),
        ((low,), "", 0, True),
        ((low, None), LOW_KEY, 1, False),
        ((low, None), HIGH_KEY, 1, True),
        ((low, AUTO), LOW_KEY, 1, False),
        ((AUTO, None), HIGH_KEY, 1, False),
        ((AUTO, None), "", 1, True),
    ):
        story = Story()
        check, stays = claimed(story, *claims)
        story.deliver(keyed(story, 0, key), stay=stays[at])
        assert [line[:7] for line in check.violations(story.history)] == (
            [] if is_right else ["claim: "]
        )


def test_keys_that_move_to_another_consumer_without_a_cause_are_found() -> None:
    """V16: a share of the keys stays with its consumer until consumers come or go."""
    for leaves in (False, True):
        story = Story()
        check, stays = claimed(story, AUTO, AUTO, AUTO)
        story.deliver(keyed(story, 0, LOW_KEY), stay=stays[0])
        story.wait()
        if leaves:
            assert stays[2].consumer is not None
            stays[2].consumer.left_s = story.now_s()
            stays[2].closed_s = story.now_s()
        story.wait()
        story.deliver(keyed(story, 1, LOW_KEY), stay=stays[1])
        wrong = (
            f"claim: {story.history.arrivals[1]} came to another consumer than"
            f" {story.history.arrivals[0]}"
        )
        assert list(check.violations(story.history)) == ([] if leaves else [wrong])


def test_claim_at_an_earlier_owner_does_not_count() -> None:
    """A broker that lost its topic may still have consumers, and sends them nothing."""
    story = Story()
    check, (stay,) = claimed(story, ALL)
    story.terms.take(story.now_s(), "other")
    arrival = story.deliver(story.send(0), stay=stay)
    assert list(check.violations(story.history)) == [
        f"claim: {arrival} was sent by an earlier owner"
    ]
