"""The addresses of all pages of the console for the filled broker."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from escapement.console.pages import PAGES
from support.console.filled import ORDERS, RETURNS

# Queries of pages with something in particular to show; "" for the page without one.
_QUERIES: Final[dict[str, list[dict[str, str]]]] = {
    "/": [{}, {"by": "minute"}, {"by": "day", "where": "shop/eu"}, {"where": RETURNS}],
    "/find": [{}, {"where": ORDERS}, {"where": ORDERS, "key": "order-7"}],
    "/subscriptions": [{}, {"where": "shop/us"}],
    "/subscription": [
        {"topic": ORDERS, "subscription": "shipping"},
        {"topic": RETURNS, "subscription": "refunds"},
    ],
    "/lateness": [{}],
    "/audit": [{}],
    "/brokers": [{}],
}


def addresses() -> list[str]:
    """Return the addresses of all pages, some of them with a query."""
    found = []
    for page in PAGES:
        if page.method != "GET":
            continue
        assert page.path in _QUERIES, f"{__file__} needs an example of the page {page.path}"
        for query in _QUERIES[page.path]:
            found.append(page.path + (f"?{urlencode(query)}" if query else ""))
    return found
