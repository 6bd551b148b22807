"""The tools that change messages not yet delivered, and pause deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import BaseModel, Field

from escapement.client import delivery_times
from escapement.client.administration.outcome import Outcomes
from escapement.clock import moment
from escapement.errors import InvalidRequest
from escapement.mcp.limits import MOST_MESSAGES
from escapement.mcp.scheduling import KeyText
from escapement.mcp.tool import Call, Duration, Explained, MessageIdText, Moment, Tool, TopicText
from escapement.message import MessageId
from escapement.names import read_message_id
from escapement.protocol.limits import MAX_NAME_CHARS


class Named(Explained):
    """Messages of one topic: by their ids, or all pending ones with a key."""

    ids: list[MessageIdText] | None = Field(
        None,
        min_length=1,
        max_length=MOST_MESSAGES,
        description="The ids of messages of one topic. Give either ids, or topic and key.",
    )
    topic: TopicText | None = None
    key: KeyText | None = Field(None, description="All pending messages of topic with this key.")


class CancelMessage(Named):
    """Which messages to cancel."""


class RescheduleMessage(Named):
    """Which messages to reschedule, and their new time: one of ``delay``, ``at`` and ``now``."""

    delay: Duration | None = Field(None, description="Deliver after this delay, from now on.")
    at: Moment | None = Field(None, description="Deliver at this time.")
    now: bool = Field(False, description="Deliver now.")


class Change(BaseModel):
    """The outcome for one message."""

    id: str
    status: str = Field(
        description="done; delivered: too late, it had been delivered; cancelled: it was cancelled "
        "before; over: it expired or was dropped; unknown: there is no such message."
    )
    keep: list[str] = Field(
        description="Subscriptions that had got the message before, and keep it."
    )


class Changes(BaseModel):
    """The outcomes for all messages of the call. Each status is final."""

    done: int = Field(description="How many messages were changed.")
    messages: list[Change]


async def cancel_message(call: Call, given: CancelMessage) -> Changes:
    """Cancel messages."""
    topic, meant = await _meant(call, given)
    broker = call.client.broker.because(given.reason)
    return _changes(await broker.cancel(meant, topic=topic))


async def reschedule_message(call: Call, given: RescheduleMessage) -> Changes:
    """Give messages another due time."""
    if (given.delay is not None) + (given.at is not None) + given.now != 1:
        raise InvalidRequest("Give exactly one of delay, at and now.")
    call.limits.check_time(given.delay, given.at, call.now_ms())
    topic, meant = await _meant(call, given)
    broker = call.client.broker.because(given.reason)
    if given.now:
        return _changes(await broker.run_now(meant, topic=topic))
    return _changes(await broker.reschedule(meant, topic=topic, delay=given.delay, at=given.at))


async def _meant(call: Call, given: Named) -> tuple[str, list[MessageId]]:
    """Return the topic, and the messages that the arguments name.

    Raises:
      InvalidRequest: if the arguments do not name messages.
      AccessDenied: if the agent may not use the topic.
      LimitExceeded: if there are too many messages.
    """
    if given.ids is not None and given.topic is None and given.key is None:
        call.limits.check_count(len(given.ids))
        named = [read_message_id(id) for id in given.ids]
        found = [MessageId(call.limits.topic(topic), offset) for topic, offset in named]
        return found[0].topic, list(dict.fromkeys(found))
    if given.ids is not None or given.topic is None or given.key is None:
        raise InvalidRequest("Name the messages: give either ids, or both topic and key.")
    topic = call.limits.topic(given.topic)
    most = call.limits.max_messages + 1  # enough to know that there are too many
    found = [one.id async for one in call.client.broker.peek(topic, key=given.key, count=most)]
    call.limits.check_count(len(found))
    return topic, found


def _changes(outcomes: Outcomes) -> Changes:
    return Changes(
        done=int(outcomes.done.sum()),
        messages=[
            Change(id=str(one.id), status=one.status.name.lower(), keep=list(one.handed))
            for one in outcomes
        ],
    )


SubscriptionText = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_CHARS,
        description="Only this subscription; without it, the whole topic.",
    ),
]


class ResumeDelivery(Explained):
    """A topic or a subscription to resume."""

    topic: TopicText
    subscription: SubscriptionText | None = None


class PauseDelivery(ResumeDelivery):
    """A topic or a subscription to pause, and the length of the pause."""

    duration: Duration | None = Field(
        None, description="Resume by itself after this long. Without it, resume_delivery resumes."
    )


class Delivery(BaseModel):
    """Whether deliveries are paused. A topic and its subscriptions are paused independently."""

    paused: bool
    until: datetime | None = Field(description="When they resume by themselves, if they do.")


async def pause_delivery(call: Call, given: PauseDelivery) -> Delivery:
    """Pause deliveries."""
    topic = call.limits.topic(given.topic)
    for_ms = None
    if given.duration is not None:
        for_ms = delivery_times.delay_ms(given.duration, "duration", 1)
    answer = await call.client.broker.because(given.reason).admin(
        "dispatch.pause", topic=topic, subscription=given.subscription, for_ms=for_ms
    )
    until = None if for_ms is None else moment(answer["paused_until_ms"])
    return Delivery(paused=True, until=until)


async def resume_delivery(call: Call, given: ResumeDelivery) -> Delivery:
    """Resume deliveries."""
    broker = call.client.broker.because(given.reason)
    await broker.resume(call.limits.topic(given.topic), given.subscription)
    return Delivery(paused=False, until=None)


_FINAL: Final = "The answer is final. Subscriptions that got a message before keep it."
TOOLS: Final = [
    Tool(
        "cancel_message",
        "Cancel messages that are not yet delivered, by ids or by key, so that they are never "
        f"delivered. This cannot be undone. {_FINAL}",
        CancelMessage,
        Changes,
        cancel_message,
        writes=True,
        destroys=True,
    ),
    Tool(
        "reschedule_message",
        "Give messages that are not yet delivered another due time, by ids or by key: after a "
        f"delay, at a time, or now. {_FINAL}",
        RescheduleMessage,
        Changes,
        reschedule_message,
        writes=True,
        destroys=True,
        repeatable=False,
    ),
    Tool(
        "pause_delivery",
        "Pause the deliveries of a topic, or of one subscription. Messages can still be scheduled, "
        "and are delivered late. This concerns all consumers of the topic.",
        PauseDelivery,
        Delivery,
        pause_delivery,
        writes=True,
        destroys=True,
        repeatable=False,
    ),
    Tool(
        "resume_delivery",
        "Resume deliveries that were paused, also by others.",
        ResumeDelivery,
        Delivery,
        resume_delivery,
        writes=True,
        destroys=True,
    ),
]
