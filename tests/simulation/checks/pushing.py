"""Posts to an endpoint: what docs/guides/push.md promises of each.

``push_tries.py`` has what is seen, and ``push_pace.py`` when a post may begin.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from escapement.storage.catalog.push_targets import ACK_MARGIN_MS
from histories.history import History, number_of
from simulation.checks.push_pace import wrong_pace
from simulation.checks.push_tries import ACK, BACK_OFF, NACK, REJECT, RELEASE, Post, Pusher, Try
from simulation.checks.seeking import Pause

# The most that the broker adds to an ack wait, as a share of it.
_JITTER: Final = 0.33
# Times of the history are floats, and some times of the product are whole milliseconds.
_ROUNDING_MS: Final = 2
# A message that is on its way for this long may come to another process before its first post ends.
_LATE_S: Final = 5.0
# The time after which a process that knows of a pause begins no more posts.
_STOPPING_S: Final = 1.0


@dataclass(eq=False)
class PushCheck:
    """Posts are those of messages that are due, at the allowed pace, and decide their fate.

    The rules for all messages see the tries as deliveries.

    Attributes:
      min_backoff_ms, max_backoff_ms: the bounds of ack waits.
    """

    subscription: str
    min_backoff_ms: int
    max_backoff_ms: int
    pushers: list[Pusher] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)  # of the target
    secrets: set[str] = field(default_factory=set)
    secrets_known: bool = False  # whether a request that changes the secret is not in progress
    types: dict[int, str] = field(default_factory=dict)  # content types, by number of the message
    stray: list[Post] = field(default_factory=list)  # those without a try

    def unfinished(self, history: History) -> Iterator[str]:
        """Yield nothing: the rules for all messages find those without an end."""
        yield from ()

    def violations(self, history: History) -> Iterator[str]:
        """Yield a line for each broken promise."""
        for post in self.stray:
            yield f"push: {post.headers['webhook-id']} was posted without a delivery"
        ids: dict[str, tuple[int, int]] = {}
        for pusher in self.pushers:
            yield from self._while_paused(pusher)
            for deliveries in pusher.deliveries:
                yield from wrong_pace(deliveries.tries, deliveries.concurrency)
                for one in deliveries.tries:
                    yield from _of_try(history, one, deliveries.timeout_ms)
                    if one.posts and one.taken_s > self._deadline_s(one, deliveries.timeout_ms):
                        yield f"push: {one.arrival} was posted after its ack deadline"
                    for post in one.posts:
                        yield from self._of_post(history, one, post)
                        known = one.arrival.number, one.arrival.offset
                        if ids.setdefault(post.headers["webhook-id"], known) != known:
                            yield f"push: {one.arrival} was posted with the id of another message"
        if len(set(ids.values())) < len(ids):
            yield "push: a message was posted with two ids"
        yield from self._at_once()
        yield from self._wrong_reasons(history)

    def _deadline_s(self, one: Try, timeout_ms: int) -> float:
        """Return the latest time at which the broker may take a message back."""
        wait_ms = (timeout_ms + ACK_MARGIN_MS) * 2 ** (one.attempt - 1)
        with_jitter_ms = max(wait_ms, self.min_backoff_ms) * (1 + _JITTER)
        return one.arrival.arrived_s + min(with_jitter_ms, self.max_backoff_ms) / 1000

    def _at_once(self) -> Iterator[str]:
        """Yield posts that begin while another one of the same message is in progress."""
        tries: dict[int, list[tuple[float, Try, Pusher]]] = defaultdict(list)
        for pusher in self.pushers:
            for one in (one for some in pusher.deliveries for one in some.tries):
                tries[one.arrival.offset].append((one.taken_s, one, pusher))
        for several in tries.values():
            several.sort(key=lambda each: each[0])
            for i, (_, earlier, pusher) in enumerate(several):
                for at_s, later, _ in several[i + 1 :]:
                    if later.end != RELEASE and not _is_over(earlier, pusher, later, at_s):
                        yield f"push: {later.arrival} was posted twice at once"

    def _of_post(self, history: History, one: Try, post: Post) -> Iterator[str]:
        """Yield wrong headers."""
        arrival, headers = one.arrival, post.headers
        at_s = int(headers["webhook-timestamp"])
        due = datetime.fromisoformat(headers["escapement-due"])
        wrong = {
            "body": number_of(post.body) != arrival.number,
            "escapement-attempt": headers["escapement-attempt"] != str(one.attempt),
            "escapement-due": round(due.timestamp() * 1000) != arrival.due_ms,
            "content-type": headers["content-type"] != self.types[arrival.number],
            "webhook-timestamp": not history.unix_ms(one.taken_s) // 1000
            <= at_s
            <= history.unix_ms(post.received_s) // 1000,
            "webhook-signature": self.secrets_known
            and not any(_signature(secret, post) in headers["webhook-signature"].split()
                        for secret in self.secrets),
        }  # fmt: skip
        for name, is_wrong in wrong.items():
            if is_wrong:
                yield f"push: {arrival} was posted with a wrong {name}: {headers.get(name)}"

    def _while_paused(self, pusher: Pusher) -> Iterator[str]:
        """Yield listings that show a paused target, and posts that begin after a listing."""
        for listing in pusher.listings:
            for pause in self.pauses:
                within = pause.began_s < listing.called_s and listing.answered_s < pause.ended_s
                if within and listing.listed:
                    yield f"push: a broker told a paused target at {listing.answered_s:.0f} s"
        for deliveries in pusher.deliveries:
            for one in deliveries.tries:
                if one.end != RELEASE and _is_unlisted(pusher, one.taken_s):
                    yield f"push: {one.arrival} was posted after its target was paused"

    def _wrong_reasons(self, history: History) -> Iterator[str]:
        """Yield dead letters whose reason is not the end of a try."""
        ends: dict[int, set[tuple[str, str]]] = {}
        for pusher in self.pushers:
            for one in (one for some in pusher.deliveries for one in some.tries):
                ends.setdefault(one.arrival.offset, set()).add((one.end, one.detail))
        found = history.dead_letters[self.subscription]
        for offset, (reason, detail) in found.reasons.items():
            _, original = found.seen[offset]
            rejected = (REJECT, detail) in ends.get(original, ())
            if reason == "rejected" and not rejected:
                yield f"push: offset {original} is a dead letter with the wrong detail {detail}"
            if reason not in ("rejected", "nack", "timeout", "disconnect"):
                yield f"push: offset {original} is a dead letter with the wrong reason {reason}"


def _is_over(earlier: Try, pusher: Pusher, later: Try, at_s: float) -> bool:
    """Return whether a try has ended by then, or a fault let the message come again before."""
    if pusher.killed_s <= at_s or (earlier.ended_s is not None and earlier.ended_s <= at_s):
        return True
    if any(resumed_s >= earlier.arrival.sent_s for resumed_s in pusher.resumed_s):
        return True
    if earlier.arrival.arrived_s - earlier.arrival.sent_s > _LATE_S:
        return True
    before, after = earlier.arrival.way, later.arrival.way
    ended_s = before.connection.ended_s
    return (ended_s is not None and ended_s <= at_s) or before.process != after.process


def _is_unlisted(pusher: Pusher, at_s: float) -> bool:
    """Return whether the latest answer had long told that the target is paused."""
    known = [one for one in pusher.listings if one.answered_s <= at_s]
    if not known or known[-1].listed or known[-1].answered_s > at_s - _STOPPING_S:
        return False
    return not any(known[-1].answered_s <= resumed_s <= at_s for resumed_s in pusher.resumed_s)


def _of_try(history: History, one: Try, timeout_ms: int) -> Iterator[str]:
    """Yield a wrong end of a try, several posts of one, and messages that came too early."""
    if len(one.posts) > 1:
        yield f"push: {one.arrival} was posted {len(one.posts)} times in one attempt"
    if one.posts and one.end == RELEASE:
        yield f"push: {one.arrival} was posted and released"
    if one.ended_s is None or one.end == RELEASE:
        return
    post = one.posts[0] if one.posts else None
    heard_s = None if post is None else post.heard_s
    in_time_s = one.taken_s + (timeout_ms - _ROUNDING_MS) / 1000
    got = one.end, one.delay_ms, one.detail
    unheard = NACK, BACK_OFF, ""
    expected = [unheard]
    if post is not None and heard_s is not None:
        expected = [post.end(history.unix_ms(heard_s))]
        if heard_s > in_time_s:
            expected.append(unheard)
    if not any(_fits(got, wanted) for wanted in expected):
        yield f"push: {one.arrival} ended as {got} and not as {expected}"
    yield from _repeated(history, one)


def _fits(got: tuple[str, int, str], wanted: tuple[str, int, str]) -> bool:
    if BACK_OFF in (got[1], wanted[1]):
        return got == wanted
    return got[::2] == wanted[::2] and abs(got[1] - wanted[1]) <= _ROUNDING_MS


def _repeated(history: History, one: Try) -> Iterator[str]:
    """Yield deliveries after a reject, or before the wait that the endpoint asked for."""
    arrival = one.arrival
    if not one.sure or one.end == ACK or one.delay_ms == BACK_OFF:
        return
    assert one.ended_s is not None
    for later in history.courses[arrival.subscription, arrival.offset]:
        if later.sent_s <= arrival.sent_s or later.way != arrival.way._replace(sent=later.way.sent):
            continue
        after_ms = (later.sent_s - one.ended_s) * 1000
        if one.end == REJECT and after_ms > 0:
            yield f"push: {arrival} came again after it was rejected"
        elif after_ms < one.delay_ms - _ROUNDING_MS:
            yield f"push: {arrival} came again after {after_ms:.0f} ms, not {one.delay_ms} ms"


def _signature(secret: str, post: Post) -> str:
    """Return the signature that an endpoint expects."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    text = f"{post.headers['webhook-id']}.{post.headers['webhook-timestamp']}.".encode()
    return "v1," + base64.b64encode(hmac.digest(key, text + post.body, hashlib.sha256)).decode()
