"""The addresses of all pages of the console, for the filled broker."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from escapement.console.pages import PAGES
from support.console.filled import MAILS, ORDERS, RETURNS

_MESSAGE: Final = f"{ORDERS}@276"  # in retry
_SCHEDULE: Final = "/schedules/shop/eu/nightly-report"
# The addresses of each page that a browser shows, by its path. The first one is the usual one.
_EXAMPLES: Final[dict[str, list[str]]] = {
    "/": ["/", "/?by=day&where=shop/us", f"/?by=minute&where={RETURNS}"],
    "/find": [f"/find?where={ORDERS}", "/find", f"/find?where={ORDERS}&state=in-retry"],
    "/messages/{id:path}": [f"/messages/{_MESSAGE}", f"/messages/{MAILS}@0"],  # a dead letter
    "/groups/{topic:path}/{group}": [f"/groups/{ORDERS}/sale"],
    "/jobs": ["/jobs"],
    "/jobs/{topic:path}/{id}": [f"/jobs/{RETURNS}/1"],
    "/subscriptions": ["/subscriptions"],
    "/subscription": [
        f"/subscription?topic={ORDERS}&subscription=shipping",
        f"/subscription?topic={RETURNS}&subscription=refunds",
    ],
    "/lateness": [f"/lateness?topic={ORDERS}&subscription=shipping&minutes=120", "/lateness"],
    "/schedules": ["/schedules"],
    "/schedules/new": ["/schedules/new"],
    "/schedules/{tenant}/{namespace}/{name}": [_SCHEDULE],
    "/schedules/{tenant}/{namespace}/{name}/edit": [f"{_SCHEDULE}/edit"],
    "/dead-letters": ["/dead-letters"],
    "/dead-letters/{tenant}/{namespace}/{name}/{subscription}": [f"/dead-letters/{MAILS}/sender"],
    "/dead-letters/{tenant}/{namespace}/{name}/{subscription}/{offset}": [
        f"/dead-letters/{MAILS}/sender/0"
    ],
    "/produce": [f"/produce?{urlencode({'topic': MAILS, 'when': 'delay', 'delay': '3h'})}"],
    "/brokers": ["/brokers"],
    "/audit": ["/audit"],
}
# Parts of pages, which htmx loads, and downloads.
_PARTS: Final[dict[str, str]] = {
    "/payloads/{id:path}": f"/payloads/{_MESSAGE}",
    "/produce/preview": "/produce/preview?when=delay&delay=3h",
    "/schedules/preview": "/schedules/preview?by=cron&cron=30+2+*+*+*&timezone=Europe/Berlin",
    "/schedules/{tenant}/{namespace}/{name}/preview": f"{_SCHEDULE}/preview?by=every&every=1h",
}
# The pages that have a picture, by its name.
PICTURES: Final = {
    "timeline": "/",
    "find": f"/find?where={ORDERS}",
    "message": f"/messages/{_MESSAGE}",
    "subscriptions": "/subscriptions",
    "subscription": f"/subscription?topic={ORDERS}&subscription=shipping",
    "lateness": f"/lateness?topic={ORDERS}&subscription=shipping&minutes=120",
    "schedules": "/schedules",
    "schedule": _SCHEDULE,
    "dead-letters": "/dead-letters",
    "dead-letters-of-a-subscription": f"/dead-letters/{MAILS}/sender",
    "produce": _EXAMPLES["/produce"][0],
    "jobs": "/jobs",
    "brokers": "/brokers",
    "audit": "/audit",
}
_PATHS: Final = {page.path for page in PAGES if page.method == "GET"}


def whole_pages() -> dict[str, list[str]]:
    """Return the addresses of each page that a browser shows, by its path."""
    missing = _PATHS - _EXAMPLES.keys() - _PARTS.keys()
    assert not missing, f"{__file__} needs an address of {', '.join(sorted(missing))}"
    return {path: _EXAMPLES[path] for path in sorted(_PATHS & _EXAMPLES.keys())}


def parts() -> list[str]:
    """Return an address of each page that is a part of another one, or a download."""
    return [_PARTS[path] for path in sorted(_PATHS & _PARTS.keys())]
