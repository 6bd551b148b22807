"""The names of the problems that a check finds besides contradictions, and the remedy of each.

Contradictions between messages have kinds of their own (pipeline/auditing/finding.py).
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Final

from escapement.doctor.finding import Finding, error, warning
from escapement.pipeline.auditing.finding import Kind


class Problem(StrEnum):
    """What is damaged. The values are names for people."""

    DATABASE = "database"  # it does not answer, or a file of SQLite is damaged
    LEASE = "lease"
    JOURNAL = "journal"
    LOG_TABLES = "log tables"
    CATALOG = "catalog"
    ROWS = "orphaned rows"
    FILES = "orphaned files"


# The problems that damage the log itself. No repair deletes anything while one of them lasts.
OF_THE_LOG: Final = frozenset[Kind | Problem](
    {
        *(Problem.DATABASE, Problem.JOURNAL, Problem.LOG_TABLES, Problem.CATALOG),
        *(Kind.STATE, Kind.LOG_ROWS, Kind.LOG_ORDER, Kind.RESCHEDULED),
    }
)
# The problems of the index, which a broker rebuilds from the log.
OF_THE_INDEX: Final = frozenset({Kind.INDEX, Kind.INDEX_FILES, Kind.STALE_INDEX})

_REPAIR: Final = "Stop the broker and run escapement check --repair."
_RESTORE: Final = (
    "This cannot be derived from other data. Restore the database from a backup. Keep the data"
    " directory until then: its index may have the messages that the log lacks."
)
_REMEDIES: Final[dict[Kind | Problem, str]] = {
    Problem.LEASE: f"{_REPAIR} It restores the lease.",
    Problem.ROWS: "They take space and do no harm. Delete them by SQL if you are sure that no"
    " backup is to be restored.",
    Kind.TOPIC_END: f"{_REPAIR} It raises the end of the topic.",
    Kind.CURSORS: "New messages at these offsets would never be delivered. Part of the database"
    " comes from another time: restore all of it from one backup.",
    Kind.RETRIES: "Part of the database comes from another time. Restore all of it from one"
    " backup.",
    Kind.STALE_INDEX: "Nothing is lost: the next start of the broker builds the index again. To do"
    " so beforehand and faster, run escapement pipeline rebuild.",
    Kind.INDEX: f"{_REPAIR} It deletes the index, and the broker builds it again from the log.",
    Kind.INDEX_FILES: f"{_REPAIR} It deletes the index, and the broker builds it again from the"
    " log.",
}


def problem(what: Kind | Problem, text: str) -> Finding:
    """Return the finding of a problem, with its severity and its remedy."""
    make = warning if what in (Problem.ROWS, Kind.STALE_INDEX) else error
    return make(what.value, text, _REMEDIES.get(what, _RESTORE))


def of_bundle(finding: Finding, bundle_id: int, count: int) -> Finding:
    """Return the finding with the bundle in its text, if there are several bundles."""
    return finding if count == 1 else replace(finding, text=f"bundle {bundle_id}: {finding.text}")
