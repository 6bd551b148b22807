"""The state of a message table, as one row of a listing."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class ListedTable(TypedDict):
    """The state of a message table: "ok", or the problem. A rejected table has no figures."""

    table: str
    state: str
    consumers: NotRequired[int]
    waiting: NotRequired[int]
    in_flight: NotRequired[int]
    acknowledged: NotRequired[int]
