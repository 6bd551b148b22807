"""URLs of push targets: which are allowed, and how they are read."""

from __future__ import annotations

import pytest

from escapement.endpoint import MAX_URL_CHARS, Endpoint
from escapement.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "expected", "url"),
    [
        ("https://a.example", ("https", "a.example", 443, "/"), "https://a.example/"),
        (
            "HTTPS://Shop.Example:443/hooks?q=1",
            ("https", "shop.example", 443, "/hooks?q=1"),
            "https://shop.example/hooks?q=1",
        ),
        ("http://10.0.0.7:8080/x", ("http", "10.0.0.7", 8080, "/x"), "http://10.0.0.7:8080/x"),
        ("https://[2001:DB8::1]:8443/", ("https", "2001:db8::1", 8443, "/"), None),
        ("http://localhost:80/a;b", ("http", "localhost", 80, "/a;b"), "http://localhost/a;b"),
        ("https://a.example:80", ("https", "a.example", 80, "/"), "https://a.example:80/"),
    ],
)
def test_url_is_read_and_written(
    text: str, expected: tuple[str, str, int, str], url: str | None
) -> None:
    """B16"""
    found = Endpoint.parse(text)
    assert found == expected
    assert url is None or found.url == url
    assert Endpoint.parse(found.url) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example",
        "ftp://a.example/",
        "file:///etc/passwd",
        "gopher://a.example:1024/",
        "https://",
        "https:///path",
        "https://user@a.example/",
        "https://user:secret@a.example/",
        "https://a.example@10.0.0.1/",
        "https://a.example\\@10.0.0.1/",
        "https://a.example/#fragment",
        "https://a.example/#",
        "https://a.example:22/",
        "https://a.example:0/",
        "https://a.example:70000/",
        "https://a.example:x/",
        "https://127.1/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.0.0.1./",
        "https://[::1/",
        "https://[fe80::1%25eth0]/",
        "https://a..example/",
        "https://a_.example-/",
        "https://münchen.example/",
        "https://a.example/\r\nHost: b",
        "https://a.example/ b",
        "https://a.example\t.b/",
        " https://a.example/",
        "https://a.example/" + "x" * MAX_URL_CHARS,
        "https://" + "a." * 130 + "example/",
    ],
)
def test_url_that_is_odd_is_refused(text: str) -> None:
    """B16: no program reads another host from a URL that is allowed."""
    with pytest.raises(InvalidRequest, match="push target"):
        Endpoint.parse(text)


def test_refusal_does_not_repeat_a_password() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Endpoint.parse("https://user:hunter2@a.example/")
    assert "hunter2" not in str(caught.value)
