"""Publishing a message, from scratch or from another one, with a delay or at a time."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
import trio
from starlette.responses import Response

from escapement.client.producing.receipt import Receipt
from escapement.client.producing.replace import Replace
from escapement.clock import moment
from escapement.console.finding.topics import exists
from escapement.console.reading.message_source import DeadLetter, Source
from escapement.console.text.clock_changes import doubt
from escapement.console.text.payload_fields import Kind, payload_of
from escapement.console.text.property_fields import properties_of
from escapement.console.text.times import field, time_of
from escapement.console.visit.view import Page, View
from escapement.durations import parse as parse_duration
from escapement.errors import AccessDenied, EscapementError, InvalidRequest, NotFound
from escapement.message import DEFAULT_PRIORITY, MAX_PRIORITY
from escapement.names import TopicName, read_message_id

# How long the page waits for the receipt of a message.
_SEND_TIMEOUT_S: Final = 10
# How long the answer to a refused form waits for each look. The brokers may be down.
_LOOK_S: Final = 3


class Form(msgspec.Struct, rename={"from_": "from"}):
    """The fields of the form. An empty field means none.

    Attributes:
      when: whether the message is due at once, after ``delay``, or at ``at``.
      replace_mode: what a pending message with the same replace key meets.
      from_: the id of the message that the form was filled from.
      purge: whether that is a dead letter to be deleted when the new message is stored.
      create: the full name of a topic that does not exist and shall be created.
      preview: whether only to show the time.
      sent: the id of the message that was just sent.
    """

    topic: str = ""
    kind: Kind = "text"
    key: str = ""
    properties: str = ""
    priority: int = DEFAULT_PRIORITY
    group: str = ""
    dedup: str = ""
    replace: str = ""
    replace_mode: Literal["latest", "first"] = "latest"
    when: Literal["now", "delay", "at"] = "now"
    delay: str = ""
    at: str = ""
    from_: str = ""
    purge: bool = False
    create: str = ""
    preview: bool = False
    sent: str = ""

    @classmethod
    def of(cls, source: Source, view: View) -> Form:
        """Return the form of a message like another one."""
        is_later = source.due_ms > view.now_ms
        return cls(
            topic=source.topic,
            kind=source.kind,
            key=source.key,
            properties=source.properties,
            priority=source.priority,
            group=source.group,
            when="at" if is_later else "now",
            at=field(source.due_ms, view.zone) if is_later else "",
            from_=source.id,
        )

    @property
    def delay_ms(self) -> int:
        """The delay. Raises InvalidRequest if it is not one."""
        if not self.delay:
            raise InvalidRequest("Enter a delay, such as 3m.")
        return parse_duration(self.delay)

    def at_ms(self, view: View) -> int:
        """Return the time. Raises InvalidRequest if it is not one."""
        if not self.at:
            raise InvalidRequest("Enter a time.")
        return time_of(self.at, view.zone)

    def due_ms(self, view: View) -> int:
        """Return when the message is due if it is sent now."""
        if self.when == "delay":
            return view.now_ms + self.delay_ms
        return view.now_ms if self.when == "now" else max(self.at_ms(view), view.now_ms)

    def arguments(self, view: View) -> dict[str, Any]:
        """Return the arguments of ``Producer.send`` but the value.

        Raises:
          InvalidRequest: if a field is not valid.
        """
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise InvalidRequest(f"The priority is a number from 0 to {MAX_PRIORITY}.")
        replace = None
        if self.replace:
            replace = getattr(Replace, self.replace_mode)(self.replace)
        return {
            "key": self.key or None,
            "properties": properties_of(self.properties) or None,
            "priority": self.priority,
            "group": self.group or None,
            "dedup": self.dedup or None,
            "replace": replace,
            "delay": (self.delay_ms, "ms") if self.when == "delay" else None,
            "at": moment(self.at_ms(view)) if self.when == "at" else None,
        }


async def _form(view: View) -> Response:
    form = view.query(Form)
    source = await _source(view, form)
    if source is None:
        return _page(view, form)
    return _page(view, Form.of(source, view), source, source.payload)


async def _send(view: View) -> Response:
    form, payload = view.sent(Form), view.form.get("payload", "")
    source = await _source(view, form)
    if form.preview:
        return _page(view, form, source, payload, form.create)
    receipt = await _publish(view, form, payload_of(form.kind, payload))
    notice = _outcome(receipt)
    if receipt.id and not await _has_subscriptions(view, receipt.id.topic):
        notice += " Its topic has no subscription. One must be created before the message is due."
    if form.purge and source is not None and source.dead_letter is not None:
        notice += await _purge(view, source.dead_letter)
    return view.go(f"/produce?sent={receipt.id}" if receipt.id else "/produce", notice)


async def _publish(view: View, form: Form, payload: bytes) -> Receipt:
    topic, arguments = TopicName.parse(form.topic).full, form.arguments(view)
    # The first message of a topic creates it, and a name may be mistyped.
    if form.create != topic and await _is_missing(view, topic):
        raise NotFound(
            f"There is no topic {topic}. Correct its name, or tick the box to create the topic."
        )
    producer = await view.acting().producer(topic, send_timeout=(_SEND_TIMEOUT_S, "s"))
    async with producer:
        return await producer.send(payload, **arguments)


async def _is_missing(view: View, topic: str) -> bool:
    """Return whether a topic does not exist; False if the user may not look."""
    return view.user.may("peek", topic) and not await exists(view.broker, topic)


async def _has_subscriptions(view: View, topic: str) -> bool:
    """Return whether a topic has subscriptions; True if that is not known."""
    if not view.user.may("peek", topic):
        return True
    try:
        return bool(await view.broker.admin("subscriptions.list", topic=topic))
    except EscapementError:  # the message is stored anyway
        return True


def _outcome(receipt: Receipt) -> str:
    if receipt.duplicate:
        return "The topic already has a message with this dedup key. Nothing was stored."
    if receipt.kept:
        return "A pending message with this replace key was kept. The new one was dropped."
    if receipt.replaced is not None:
        return f"The message is stored. It replaced {receipt.replaced}."
    return "The message is stored."


async def _purge(view: View, dead_letter: DeadLetter) -> str:
    """Delete the dead letter that was sent again; return what to say about it."""
    try:
        answer = await view.acting().admin(
            "dlq.purge",
            topic=dead_letter.topic,
            subscription=dead_letter.subscription,
            dead_letter_topic=dead_letter.lie_in,
            offsets=[dead_letter.offset],
            count=1,
        )
    except EscapementError as error:
        return f" The dead letter is still there: {error}"
    return " The dead letter is deleted." if answer["purged"] else " The dead letter was gone."


async def _preview(view: View) -> Response:
    return view.show("messages/produce_preview.html", **_times(view, view.query(Form)))


async def _source(view: View, form: Form) -> Source | None:
    """Return the message that the form is filled from, if it is from one."""
    if not form.from_:
        return None
    if not view.user.sees_payloads:
        raise AccessDenied("Viewers do not see payloads.")
    return await Source.read(view.broker, form.from_)


async def _again(view: View) -> Response:
    form, source, missing = view.readable(Form), None, ""
    with suppress(EscapementError), trio.move_on_after(_LOOK_S):  # the message may be gone
        source = await _source(view, form)
    with suppress(EscapementError), trio.move_on_after(_LOOK_S):
        topic = TopicName.parse(form.topic).full
        missing = topic if await _is_missing(view, topic) else ""
    return _page(view, form, source, view.form.get("payload", ""), missing)


def _page(
    view: View,
    form: Form,
    source: Source | None = None,
    payload: str = "",
    missing: str = "",
) -> Response:
    """Show the form. ``missing`` is the name of its topic if the user may create that."""
    if form.sent:
        read_message_id(form.sent)  # raises InvalidRequest
    return view.show(
        "messages/produce.html",
        form=form,
        source=source,
        missing=missing,
        payload=payload,
        most_priority=MAX_PRIORITY,
        **_times(view, form),
    )


def _times(view: View, form: Form) -> dict[str, Any]:
    """Return what the page says about the time of the message."""
    try:
        due_ms = form.due_ms(view)
    except InvalidRequest as error:
        return {"due_ms": None, "problem": str(error), "doubt": "", "passed": False}
    by_time = form.when == "at"
    return {
        "due_ms": due_ms,
        "problem": "",
        "doubt": doubt(form.at, view.zone) if by_time else "",
        "passed": by_time and due_ms == view.now_ms,
    }


PAGES: Final = [
    Page("/produce", _form),
    Page("/produce", _send, method="POST", again=_again),
    Page("/produce/preview", _preview),
]
