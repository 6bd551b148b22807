"""The brokers: who owns which bundle, the log and its growth, versions, and warnings."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from escapement.console.visit.view import Number, Page, View

# The counters whose rates are shown.
_COUNTERS: Final = ("published", "delivered", "commits", "log_bytes")
_DAY_S: Final = 86_400


class Target(msgspec.Struct):
    """The node and the bundle that a form names."""

    node: str = ""
    bundle: Number = 0


async def _brokers(view: View) -> Response:
    return view.show("brokers/brokers.html", **await _part(view))


async def _live(view: View) -> str:
    return view.part("brokers/brokers_part.html", **await _part(view))


async def _part(view: View) -> dict[str, Any]:
    stats = await view.broker.admin("broker.stats")
    counters = {name: stats[name] for name in _COUNTERS}
    rates = view.session.rates.of("brokers", counters, view.now_ms)
    growth = rates["log_bytes"]
    return {
        "stats": stats,
        "rates": rates,
        "growth_a_day": None if growth is None else round(growth * _DAY_S),
        "cluster": await view.broker.admin("cluster.status"),
        "checked": await view.broker.admin("broker.findings"),
    }


async def _drain(view: View) -> Response:
    target = view.sent(Target)
    await view.acting().admin("cluster.drain", node=target.node)
    return view.go("/brokers", f"{target.node} gives its bundles to other brokers.")


async def _undrain(view: View) -> Response:
    target = view.sent(Target)
    await view.acting().admin("cluster.undrain", node=target.node)
    return view.go("/brokers", f"{target.node} takes bundles again.")


async def _move(view: View) -> Response:
    target = view.sent(Target)
    await view.acting().admin("cluster.move", bundle=target.bundle, node=target.node or None)
    if target.node:
        return view.go("/brokers", f"Bundle {target.bundle} moves to {target.node}.")
    return view.go("/brokers", f"Bundle {target.bundle} is not pinned any more.")


PAGES: Final = [
    Page("/brokers", _brokers, live=_live),
    Page("/brokers/drain", _drain, "POST", again=_brokers),
    Page("/brokers/undrain", _undrain, "POST", again=_brokers),
    Page("/brokers/move", _move, "POST", again=_brokers),
]
