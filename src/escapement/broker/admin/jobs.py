"""The administrative operation (*verb*) that shows the progress of bulk jobs, and why they wait."""

from __future__ import annotations

from typing import Final, Literal, TypedDict

from escapement.broker.admin.arguments import Arguments
from escapement.broker.admin.verb import MAX_ROWS, Verb
from escapement.broker.broker import Broker
from escapement.storage.inbox.job import JobState

State = Literal["staging", "committed", "adopted", "given up"]


class ListedJob(TypedDict):
    """The progress of a bulk job."""

    job: str
    version: int
    state: State
    messages: int
    adopted: int
    size_bytes: int
    stuck: int
    reason: str | None
    created_at_ms: int
    staged_at_ms: int | None
    committed_at_ms: int | None
    adopted_at_ms: int | None
    given_up_at_ms: int | None


async def _list_jobs(broker: Broker, given: Arguments) -> list[ListedJob]:
    given.end()
    relay = broker.services.inbox_relay
    jobs = await relay.jobs(MAX_ROWS)
    async with broker.answering:
        return [_plain(one, relay.blocked.get(one.target)) for one in jobs]


def _plain(job: JobState, blocked: str | None) -> ListedJob:
    committed = job.committed_at_ms is not None
    return {
        "job": job.series,
        "version": job.version,
        "state": _state(job),
        "messages": job.messages,
        "adopted": job.messages - job.waiting if committed else 0,
        "size_bytes": job.size_bytes,
        "stuck": job.stuck,
        "reason": job.reason or blocked,
        "created_at_ms": job.created_at_ms,
        "staged_at_ms": job.staged_at_ms,
        "committed_at_ms": job.committed_at_ms,
        "adopted_at_ms": job.adopted_at_ms,
        "given_up_at_ms": job.given_up_at_ms,
    }


def _state(job: JobState) -> State:
    if job.adopted_at_ms is not None:
        return "adopted"
    if job.committed_at_ms is not None:
        return "committed"
    return "staging" if job.given_up_at_ms is None else "given up"


VERBS: Final[dict[str, Verb]] = {"jobs.list": _list_jobs}
