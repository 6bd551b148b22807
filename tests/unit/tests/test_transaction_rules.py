"""The rules about effects and rows of message tables find each broken promise, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from histories.effects import wrong_effects
from histories.history import History, RealClock
from histories.table_rows import TableRows
from histories.transactions import Transactions

DUE_MS = 1_000


def clean() -> TableRows:
    """Return rows that were committed, rolled back, and neither for sure; all are finished."""
    rows = TableRows()
    for stored in (True, False, None, None):
        rows.rows[rows.insert(DUE_MS)].stored = stored
    first, _, third, _ = rows.rows
    first.deliveries += [((0, 0), DUE_MS), ((1, 7), DUE_MS + 500)]
    first.acked_epoch = 2
    third.deliveries.append(((0, 0), DUE_MS + 10))
    rows.final = {0: (2, True), 2: (1, True)}
    return rows


def come_although_rolled_back(rows: TableRows) -> None:
    rows.rows[1].deliveries.append(((0, 0), DUE_MS))


def come_early(rows: TableRows) -> None:
    rows.rows[2].deliveries[0] = ((0, 0), DUE_MS - 1)


def come_twice_for_one_claim(rows: TableRows) -> None:
    rows.rows[0].deliveries.append(((1, 7), DUE_MS + 900))


def come_after_the_acknowledgement(rows: TableRows) -> None:
    rows.final = {**rows.final, 0: (3, True)}


def vanish(rows: TableRows) -> None:
    rows.final = {2: (1, True)}


def wait_forever(rows: TableRows) -> None:
    rows.final = {**rows.final, 3: (0, False)}


def be_acknowledged_unseen(rows: TableRows) -> None:
    rows.rows[2].deliveries.clear()


@pytest.mark.parametrize(
    ("break_it", "kind"),
    [
        (come_although_rolled_back, "mixed"),
        (come_early, "early"),
        (come_twice_for_one_claim, "twice"),
        (come_after_the_acknowledgement, "again"),
        (vanish, "lost"),
        (wait_forever, "lost"),
        (be_acknowledged_unseen, "lost"),
    ],
)
def test_broken_promise_about_a_row_is_found(
    break_it: Callable[[TableRows], None], kind: str
) -> None:
    """V8, V9."""
    rows = clean()
    assert [*rows.violations(), *rows.unfinished()] == []
    break_it(rows)
    (found,) = [*rows.violations(), *rows.unfinished()]
    assert found.startswith(f"{kind} (")


@pytest.mark.parametrize(
    ("acked", "effects", "kind"),
    [
        ({("x", 1)}, [("x", 1), ("x", 1)], "again"),
        (set(), [("x", 1)], "mixed"),
        ({("x", 1), ("y", 1)}, [("x", 1)], "lost"),
    ],
)
def test_effect_that_is_doubled_or_not_acknowledged_is_found(
    acked: set[tuple[str, int]], effects: list[tuple[str, int]], kind: str
) -> None:
    """V7."""
    assert list(wrong_effects({("x", 1), ("y", 1)}, Counter([("y", 1), ("x", 1)]))) == []
    (found,) = wrong_effects(acked, Counter(effects))
    assert found.startswith(f"{kind} (")


def test_whole_application_is_checked() -> None:
    """V7 to V9: the rules for all parts apply, and no acknowledgement stays unlearned."""
    history = History(RealClock())
    application = Transactions(clean(), {("x", 1)}, Counter([("x", 1)]))
    assert [*application.violations(history), *application.unfinished(history)] == []
    application.unlearned = 1
    application.effects["x", 1] = 2
    come_early(application.rows)
    vanish(application.rows)
    assert len(list(application.violations(history))) == 2
    assert len(list(application.unfinished(history))) == 2
