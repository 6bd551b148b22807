"""One message: its times, its state in each subscription, its content, and what can be done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
from starlette.responses import Response

from escapement.console.reading.endings import Ending
from escapement.console.reading.message_source import DEAD_PREFIX, own_properties
from escapement.console.text.histories import DEATHS, OVER, WHOLE, cause, death, lateness
from escapement.console.text.json_trees import json_tree
from escapement.console.text.payloads import shown
from escapement.console.text.times import LAST_MS
from escapement.console.visit.view import Page, View
from escapement.errors import AccessDenied, InvalidRequest, NotFound
from escapement.names import full_name, read_message_id

# The most bytes of a payload that a page shows. The rest can be downloaded.
MOST_SHOWN_BYTES: Final = 256 << 10
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*")


class Query(msgspec.Struct):
    """Whether to show the whole payload, or its beginning."""

    whole: bool = False


async def _message(view: View) -> Response:
    asked = view.query(Query)
    topic, offset = _id(view)
    found = await _history(view, topic, offset)
    properties = found["properties"]
    endings = await view.session.endings.of(view.broker, found, again=False)
    traceparent = properties.get("traceparent")
    trace = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return view.show(
        "messages/message.html",
        death=_death(properties),
        trace_id=trace and trace[1],
        own=own_properties(properties),
        content=await _content(view, found, asked.whole),
        **_part(found, endings),
    )


async def _live(view: View) -> str:
    found = await _history(view, *_id(view))
    endings = await view.session.endings.of(view.broker, found, again=True)
    return view.part("messages/message_part.html", **_part(found, endings))


async def _history(view: View, topic: str, offset: int) -> dict[str, Any]:
    found: dict[str, Any] = await view.broker.admin("messages.show", topic=topic, offset=offset)
    return found


def _part(found: dict[str, Any], endings: Mapping[str, Ending]) -> dict[str, Any]:
    origin = _death(found["properties"])
    return {
        "message": found,
        "id": f"{found['topic']}@{found['offset']}",
        "state": "dead letter" if _is_dead(found, endings) else WHOLE[found["state"]],
        "is_over": found["state"] in ("acked", "lapsed", "cancelled"),
        "cause": partial(cause, is_dead_letter=origin is not None),
        "lateness": lateness,
        "endings": endings,
        "death_of": death,
        "over": OVER,
        # The audit log has redrives and purges under the topic of the original message.
        "audited": found["topic"] if origin is None else origin["topic"],
    }


def _is_dead(found: Mapping[str, Any], endings: Mapping[str, Ending]) -> bool:
    """Return whether each subscription that was to get the message has a dead letter of it."""
    states = [one for one in found["subscriptions"] if one["state"] != "not covered"]
    ends = [endings.get(one["subscription"]) for one in states]
    return bool(ends) and all(end is not None and bool(end.letters) for end in ends)


async def _content(view: View, found: Mapping[str, Any], whole: bool) -> dict[str, Any] | None:
    """Return the payload in a form to show; None if the user may not see it."""
    if not view.user.sees_payloads:
        return None
    payload, size_bytes = found["payload"], found["size_bytes"]
    if whole and len(payload) < size_bytes <= MOST_SHOWN_BYTES:
        payload = await _payload(view, found["topic"], found["offset"])
    is_cut = len(payload) < size_bytes
    return {
        "tree": None if is_cut else json_tree(payload),
        "shown": shown(payload, size_bytes),
        "shown_bytes": len(payload),
        "is_cut": is_cut,
        "can_be_shown": is_cut and size_bytes <= MOST_SHOWN_BYTES,
    }


async def _download(view: View) -> Response:
    """Answer with the whole payload, as a file."""
    topic, offset = _id(view)
    if not view.user.sees_payloads:
        raise AccessDenied("Viewers do not see payloads.")
    payload = await _payload(view, topic, offset)
    name = f"{topic.rpartition('/')[2]}-{offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(payload, headers=headers, media_type="application/octet-stream")


async def _payload(view: View, topic: str, offset: int) -> bytes:
    async for page in view.broker.read(topic, offset, offset + 1):
        return page[0].payload
    raise NotFound(f"There is no message {topic}@{offset}, or its log was deleted.")


def _id(view: View) -> tuple[str, int]:
    return read_message_id(view.path("id"))


def _death(properties: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return where a dead letter comes from, and why; None if the message is not one.

    A publisher may set properties with the same names, so each is checked.
    """
    topic, offset = properties.get(f"{DEAD_PREFIX}topic"), properties.get(f"{DEAD_PREFIX}offset")
    reason = properties.get(f"{DEAD_PREFIX}reason")
    if not (isinstance(topic, str) and isinstance(offset, int) and isinstance(reason, str)):
        return None
    try:
        id = "{}@{}".format(*read_message_id(f"{full_name(topic)}@{offset}"))
    except InvalidRequest:
        return None
    found: dict[str, Any] = {
        "id": id,
        "topic": full_name(topic),
        "reason": DEATHS.get(reason, reason),
        "subscription": properties.get(f"{DEAD_PREFIX}subscription"),
        "detail": properties.get(f"{DEAD_PREFIX}detail"),
        "attempts": properties.get(f"{DEAD_PREFIX}attempts"),
    }
    for name in ("published_at_ms", "due_at_ms", "died_at_ms"):
        at_ms = properties.get(f"{DEAD_PREFIX}{name}")
        found[name] = at_ms if type(at_ms) is int and 0 <= at_ms <= LAST_MS else None
    return found


PAGES: Final = [
    Page("/messages/{id:path}", _message, live=_live),
    Page("/payloads/{id:path}", _download),
]
