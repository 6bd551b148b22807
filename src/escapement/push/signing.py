"""The headers of a post: the signature of Standard Webhooks, and what the broker knows. Pure.

https://www.standardwebhooks.com describes the signature. Libraries in many languages verify it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from escapement.clock import moment

_PREFIX: Final = "whsec_"
# Values of properties that may be sent as headers. Others are left out.
_MAX_HEADER_CHARS: Final = 512
# Spaces only inside: a header cannot end with one.
_WORDS: Final = r"[!-~](?:[ -~]*[!-~])?"
_VISIBLE: Final = re.compile(_WORDS)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_CONTENT_TYPE: Final = re.compile(
    rf"[!#$&^_.+a-z0-9-]+/[!#$&^_.+a-z0-9-]+(; ?{_WORDS})?",
    re.IGNORECASE | re.ASCII,  # otherwise the long s is a letter, too
)


def signature(secret: str, id: str, at_s: int, body: bytes) -> str:
    """Return the signature of a post by one secret.

    Args:
      secret: ``whsec_`` and base64.
      at_s: the time of the post, in Unix seconds.
    """
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signed = hmac.new(key, f"{id}.{at_s}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(signed.digest()).decode()


def post_headers(
    id: str,
    at_s: int,
    body: bytes,
    secrets: Sequence[str],
    attempt: int,
    due_ms: int,
    properties: Mapping[str, Any],
) -> dict[str, str]:
    """Return the headers of a post.

    Args:
      id: the same for each attempt to post a message, and for no other message.
      at_s: the time of the post, in Unix seconds.
      secrets: all that sign now.
      properties: those of the message. ``content-type`` and the trace context become headers.
    """
    due = moment(due_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    headers = {
        "content-type": _fitting(properties, "content-type", _CONTENT_TYPE)
        or "application/octet-stream",
        "user-agent": "escapement",
        "webhook-id": id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(signature(one, id, at_s, body) for one in secrets),
        "escapement-attempt": str(attempt),
        "escapement-due": due,
    }
    traceparent = _fitting(properties, "traceparent", _TRACEPARENT)
    if traceparent:
        headers["traceparent"] = traceparent
        tracestate = _fitting(properties, "tracestate", _VISIBLE)
        if tracestate:
            headers["tracestate"] = tracestate
    return headers


def _fitting(properties: Mapping[str, Any], name: str, form: re.Pattern[str]) -> str:
    """Return a property if it is a text of this form, otherwise ""."""
    value = properties.get(name)
    fits = isinstance(value, str) and len(value) <= _MAX_HEADER_CHARS and form.fullmatch(value)
    return value if isinstance(value, str) and fits else ""
