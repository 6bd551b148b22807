"""Jobs: bulk changes, with who started them, why, and how far they are."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from escapement.client.administration.bulk import BulkChange
from escapement.clock import unix_ms
from escapement.console.pages.act import WORDS
from escapement.console.visit.view import Number, Page, View


class Named(msgspec.Struct):
    """A job: a bulk change of a topic."""

    topic: str
    id: Number


async def _jobs(view: View) -> Response:
    return view.show("jobs/jobs.html", **await _list(view))


async def _live_jobs(view: View) -> str:
    return view.part("jobs/jobs_part.html", **await _list(view))


async def _list(view: View) -> dict[str, Any]:
    return {"jobs": [_shown(one) for one in await view.broker.bulk.list()]}


async def _job(view: View) -> Response:
    return view.show("jobs/job.html", **await _one(view, _named(view)))


async def _again(view: View) -> Response:
    return view.show("jobs/job.html", **await _one(view, view.sent(Named)))


async def _live_job(view: View) -> str:
    return view.part("jobs/job_part.html", **await _one(view, _named(view)))


def _named(view: View) -> Named:
    return Named(view.path("topic"), view.number("id"))


async def _one(view: View, named: Named) -> dict[str, Any]:
    return {"job": _shown(await view.broker.bulk.show(named.topic, named.id))}


async def _stop(view: View) -> Response:
    named = view.sent(Named)
    change = await view.acting().bulk.stop(named.topic, named.id)
    stopped = change.state == "stopped"
    notice = "The job has stopped." if stopped else "The job had ended before."
    return view.go(f"/jobs/{change.topic}/{change.id}", notice)


def _shown(change: BulkChange) -> dict[str, Any]:
    """Return a job as the templates show it."""
    times = {
        "from_ms": change.due_from,
        "until_ms": change.due_until,
        "new_due_ms": change.new_due,
        "created_ms": change.created,
        "updated_ms": change.updated,
        "ended_ms": change.ended,
    }
    spread = change.spread
    return {
        "change": change,
        "title": WORDS[change.action].title,
        "path": f"{change.topic}/{change.id}",
        "spread_ms": None if spread is None else round(spread.total_seconds() * 1000),
        **{name: None if at is None else unix_ms(at) for name, at in times.items()},
    }


_ONE: Final = "/jobs/{topic:path}/{id}"
PAGES: Final = [
    Page("/jobs", _jobs, live=_live_jobs),
    Page(_ONE, _job, live=_live_job),
    Page("/jobs/stop", _stop, method="POST", again=_again),
]
