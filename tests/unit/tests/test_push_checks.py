"""The check of push finds each broken promise, and nothing in a clean history."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from escapement.push.signing import signature
from histories.history import (
    Message,
    Way,
    payload_of,
)
from simulation.checks.push_tries import (
    ACK,
    BACK_OFF,
    NACK,
    REJECT,
    Deliveries,
    Listing,
    Post,
    Pusher,
    Try,
)
from simulation.checks.pushing import PushCheck
from simulation.checks.seeking import Pause
from support.story import HOUR_MS, Cable, Story

# -- push ---------------------------------------------------------------------------------

LATER = (NACK, BACK_OFF, "")


class Pushed:
    """A story of one process that pushes, and of its posts."""

    def __init__(self, concurrency: int = 1) -> None:
        self.story = Story()
        self.check = PushCheck("s", min_backoff_ms=60_000, max_backoff_ms=600_000)
        self.pusher = Pusher()
        self.deliveries = Deliveries(10_000, concurrency)
        self.pusher.deliveries.append(self.deliveries)
        self.check.pushers.append(self.pusher)
        self.numbers = itertools.count(1)
        self.way = Way(Cable(), "host")

    def take(self, message: Message) -> Try:
        """Deliver a message to the process."""
        story = self.story
        arrival = story.deliver(message, acks=False)
        arrival.way = self.way._replace(sent=arrival.way.sent)
        arrival.again = len(story.history.courses["s", message.offset]) > 1
        one = Try(arrival, 1, story.now_s())
        self.deliveries.tries.append(one)
        self.check.types[message.number] = "text/plain"
        return one

    def post(self, one: Try, status: int, **headers: str) -> Post:
        """Post the message of a try, and answer at once."""
        due = datetime.fromtimestamp(one.arrival.due_ms / 1000, UTC)
        usual = {
            "webhook-id": f"msg_{one.arrival.offset}",
            "webhook-timestamp": str(self.story.at_ms // 1000),
            "escapement-attempt": str(one.attempt),
            "escapement-due": due.isoformat(),
            "content-type": "text/plain",
        }
        body = payload_of(self.story.history.messages[one.arrival.number])
        now_s = self.story.now_s()
        post = Post({**usual, **headers}, body, now_s, status, heard_s=now_s)
        one.posts.append(post)
        return post

    def end(self, one: Try, end: tuple[str, int, str]) -> None:
        one.end, one.delay_ms, one.detail = end
        one.ended_s, one.ended_number = self.story.now_s(), next(self.numbers)
        one.sure = True
        if one.end == ACK:
            self.story.ack(one.arrival)
        elif one.end == NACK:
            one.arrival.returned_s = one.ended_s

    def once(self, message: Message, status: int, end: tuple[str, int, str]) -> Try:
        """Post a message, and end its try."""
        one = self.take(message)
        self.post(one, status)
        self.end(one, end)
        return one

    def found(self) -> list[str]:
        return [line for line in self.story.found(self.check) if line.startswith("push")]


def test_post_that_ends_in_another_way_than_its_answer_says_is_found() -> None:
    """B16: 2xx acknowledges, other 4xx reject, and everything else is tried again."""
    pushed = Pushed()
    for offset, (status, end) in enumerate(
        [(204, (ACK, 0, "")), (410, (REJECT, 0, "HTTP 410")), (500, LATER), (429, LATER)]
    ):
        one = pushed.once(pushed.story.send(offset), status, end)
        pushed.story.wait()
        assert pushed.found() == []
        for wrong in [(ACK, 0, ""), (REJECT, 0, "HTTP 404"), (NACK, 0, "")]:
            if wrong != end:
                (line,) = _found_with(pushed, one, end=wrong[0], delay_ms=0, detail=wrong[2])
                assert " ended as " in line
    one.posts[0].heard_s = None
    assert len(_found_with(pushed, one, end=ACK, delay_ms=0)) == 1


def _found_with(pushed: Pushed, one: Try, **changes: Any) -> list[str]:
    """Return the violations of a history in which one try is replaced."""
    tries = pushed.deliveries.tries
    at = tries.index(one)
    tries[at] = replace(one, **changes)
    found = pushed.found()
    tries[at] = one
    return found


def test_post_after_the_ack_deadline_is_found() -> None:
    """B16: the broker has taken the message back, and another process may post it."""
    for attempt, most_s in {1: 79.8, 3: 106.4, 4: 212.8, 9: 600.0}.items():
        pushed = Pushed()
        one = pushed.once(pushed.story.send(0), 500, LATER)
        one.attempt = attempt
        one.posts[0].headers["escapement-attempt"] = str(attempt)
        one.arrival.arrived_s = one.taken_s - most_s + 1
        assert pushed.found() == []
        one.arrival.arrived_s -= 2
        (line,) = pushed.found()
        assert line.endswith("was posted after its ack deadline")


def test_post_with_wrong_headers_is_found() -> None:
    """B16: id, attempt, due time, time, type and signature."""
    pushed = Pushed()
    one = pushed.once(pushed.story.send(0), 200, (ACK, 0, ""))
    assert pushed.found() == []
    for name, wrong in {
        "escapement-attempt": "2",
        "escapement-due": "2026-12-24T18:00:00.000Z",
        "webhook-timestamp": "1",
        "content-type": "text/html",
    }.items():
        post = one.posts[0]
        one.posts[0] = replace(post, headers={**post.headers, name: wrong})
        (line,) = pushed.found()
        assert line.endswith(f" was posted with a wrong {name}: {wrong}")
        one.posts[0] = post
    pushed.check.secrets = {"whsec_c2VjcmV0"}
    pushed.check.secrets_known = True
    one.posts[0].headers["webhook-signature"] = "v1,none"
    assert len(pushed.found()) == 1
    at_s, body = pushed.story.at_ms // 1000, one.posts[0].body
    right = signature("whsec_c2VjcmV0", "msg_0", at_s, body)
    one.posts[0].headers["webhook-signature"] = f"v1,none {right}"
    assert pushed.found() == []


def test_ids_of_posts_that_are_not_those_of_their_messages_are_found() -> None:
    """B16: the same id for each attempt, and for no other message."""
    pushed = Pushed()
    messages = [pushed.story.send(offset) for offset in (0, 1)]
    for message, id in ((messages[0], "a"), (messages[1], "b"), (messages[0], "a")):
        one = pushed.take(message)
        pushed.post(one, 500, **{"webhook-id": id})
        pushed.end(one, LATER)
        pushed.story.wait()
    assert pushed.found() == []
    one.posts[0].headers["webhook-id"] = "c"
    assert pushed.found() == ["push: a message was posted with two ids"]
    one.posts[0].headers["webhook-id"] = "b"
    assert len(pushed.found()) == 1


def test_second_post_in_one_attempt_and_a_post_without_a_delivery_are_found() -> None:
    """B16"""
    pushed = Pushed()
    one = pushed.once(pushed.story.send(0), 200, (ACK, 0, ""))
    post = pushed.post(one, 200)
    (line,) = pushed.found()
    assert line.endswith("posted 2 times in one attempt")
    one.posts.remove(post)
    pushed.check.stray.append(post)
    assert pushed.found() == ["push: msg_0 was posted without a delivery"]


def test_rejected_message_that_comes_again_and_a_wrong_reason_are_found() -> None:
    """B16: a dead letter at once, with the answer."""
    pushed = Pushed()
    message = pushed.story.send(0)
    pushed.once(message, 404, (REJECT, 0, "HTTP 404"))
    found = pushed.story.history.dead_letters["s"]
    found.seen[0], found.remaining = (0, 0), {0}
    for reason, count in ((("rejected", "HTTP 404"), 0), (("rejected", ""), 1), (("x", ""), 1)):
        found.reasons[0] = reason
        assert len(pushed.found()) == count
    del found.reasons[0]
    pushed.story.wait()
    pushed.take(message)
    (line,) = pushed.found()
    assert line.endswith("again after it was rejected")


def test_post_before_the_wait_that_the_endpoint_asked_for_is_found() -> None:
    """B16: neither the message nor another one is posted before."""
    pushed = Pushed()
    messages = [pushed.story.send(offset) for offset in (0, 1)]
    one = pushed.take(messages[0])
    pushed.post(one, 503).wait_ms = 2 * HOUR_MS  # an hour at most
    pushed.end(one, (NACK, HOUR_MS, ""))
    pushed.story.wait(0.5)
    later = pushed.once(messages[0], 200, (ACK, 0, ""))
    assert len(pushed.found()) == 2
    pushed.deliveries.tries.remove(later)
    pushed.story.history.courses["s", 0].pop()
    pushed.once(messages[1], 200, (ACK, 0, ""))
    (line,) = pushed.found()
    assert line.endswith("was posted beside 0 others, and 0 may be")
    pushed.deliveries.tries[-1].taken_s = pushed.deliveries.tries[-1].ended_s = 3600.0
    assert not [line for line in pushed.found() if "beside" in line]


def test_posts_during_the_pause_of_a_breaker_are_found() -> None:
    """B16: after 5 failures there is a pause of 5 s, and then one post."""
    pushed = Pushed(concurrency=4)
    for offset in range(5):
        pushed.once(pushed.story.send(offset), 500, LATER)
        pushed.story.at_ms += 1_000
    pushed.story.at_ms += 3_900
    early = pushed.take(pushed.story.send(5))
    assert len(pushed.found()) == 1
    pushed.deliveries.tries.remove(early)
    pushed.story.at_ms += 200
    pushed.take(pushed.story.send(6))
    assert pushed.found() == []
    pushed.take(pushed.story.send(7))
    (line,) = pushed.found()
    assert line.endswith("posted beside 1 others, and 1 may be")


def test_too_many_posts_at_a_time_are_found() -> None:
    """B16: one more for each success, up to the concurrency."""
    pushed = Pushed(concurrency=2)
    for offset in range(3):
        pushed.once(pushed.story.send(offset), 200, (ACK, 0, ""))
        pushed.story.wait()
    pushed.take(pushed.story.send(3))
    pushed.take(pushed.story.send(4))
    assert pushed.found() == []
    pushed.take(pushed.story.send(5))
    (line,) = pushed.found()
    assert line.endswith("posted beside 2 others, and 2 may be")


def test_message_that_is_posted_twice_at_once_is_found() -> None:
    """B16: the ack wait is longer than the timeout, so only a fault explains two posts."""
    pushed = Pushed()
    message = pushed.story.send(0)
    pushed.take(message)
    other = Pusher(deliveries=[Deliveries(10_000, 1)])
    pushed.check.pushers.append(other)
    pushed.story.at_ms += 1_000
    other.deliveries[0].tries.append(pushed.take(message))
    pushed.deliveries.tries.pop()
    (line,) = pushed.found()
    assert line.endswith(" was posted twice at once")
    pushed.pusher.killed_s = 0.5
    assert pushed.found() == []


def test_post_to_a_paused_target_is_found() -> None:
    """B16: a process follows the changes of the target."""
    pushed = Pushed()
    pushed.check.pauses.append(Pause("s", 100.0, 20_000.0))
    pushed.pusher.listings.append(Listing(50.0, 150.0, True))
    assert pushed.found() == []
    pushed.pusher.listings.append(Listing(200.0, 210.0, True))
    assert pushed.found() == ["push: a broker told a paused target at 210 s"]
    pushed.pusher.listings[-1].listed = False
    pushed.story.wait()
    pushed.once(pushed.story.send(0), 200, (ACK, 0, ""))
    (line,) = pushed.found()
    assert line.endswith("posted after its target was paused")
    pushed.pusher.resumed_s.append(3_000.0)
    assert pushed.found() == []
