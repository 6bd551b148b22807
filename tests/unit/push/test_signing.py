"""The headers of a post, and its signature by Standard Webhooks."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from escapement.push.signing import post_headers, signature

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + base64.b64encode(bytes(32)).decode()


def headers(**properties: Any) -> dict[str, str]:
    return post_headers("msg_1", 1_614_265_330, b"{}", [SECRET], 3, 1_614_265_330_001, properties)


def test_signature_is_that_of_the_example_of_standard_webhooks() -> None:
    """B16"""
    found = signature(
        SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}'
    )
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_post_is_signed_with_both_secrets_while_they_are_rotated() -> None:
    """B16"""
    found = post_headers("m", 5, b"x", [OTHER, SECRET], 1, 0, {})["webhook-signature"]
    assert found == f"{signature(OTHER, 'm', 5, b'x')} {signature(SECRET, 'm', 5, b'x')}"


def test_headers_tell_attempt_due_time_and_trace() -> None:
    """B16"""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = headers(traceparent=trace, tracestate="a=1", n=7)
    del found["webhook-signature"]
    assert found == {
        "content-type": "application/octet-stream",
        "user-agent": "escapement",
        "webhook-id": "msg_1",
        "webhook-timestamp": "1614265330",
        "escapement-attempt": "3",
        "escapement-due": "2021-02-25T15:02:10.001Z",
        "traceparent": trace,
        "tracestate": "a=1",
    }
    assert headers(**{"content-type": "application/json; charset=utf-8"})["content-type"] == (
        "application/json; charset=utf-8"
    )


@pytest.mark.parametrize("odd", [7, b"x", None, "", "a\r\nb: c", "x" * 600, "ü/ü", "text"])
def test_property_that_is_no_valid_header_is_left_out(odd: Any) -> None:
    """B16: a publisher cannot add headers or break a post."""
    found = headers(traceparent=odd, tracestate=odd, **{"content-type": odd})
    assert found["content-type"] == "application/octet-stream"
    assert not {"traceparent", "tracestate"} & found.keys()


@pytest.mark.parametrize(
    "odd", ["text/ſ", "text/plain; charset=x ", "text/plain;  ", "text/\u212a"]
)
def test_value_that_no_request_can_have_is_left_out(odd: str) -> None:
    """B16: a publisher cannot end the process that posts, nor make posts fail."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    found = headers(traceparent=trace, tracestate=odd, **{"content-type": odd})
    assert found["content-type"] == "application/octet-stream"
    assert "tracestate" not in found
