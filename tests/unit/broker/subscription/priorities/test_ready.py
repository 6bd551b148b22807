"""The messages that a subscription may deliver now, in delivery order."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.subscription.priorities.ready import TRIED_SHARE, Ready, Rows

keys = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10_000)), min_size=1, max_size=20)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), keys),
        st.tuples(st.just("take"), st.integers(1, 30)),
        st.tuples(st.just("put_back"), st.integers(1, 30)),
        st.tuples(st.just("withdraw"), st.lists(st.integers(0, 10_000), max_size=10)),
    ),
    max_size=30,
)


def as_list(rows: Rows) -> list[tuple[int, int]]:
    return list(zip(rows.due_ms.tolist(), rows.offsets.tolist(), strict=True))


def take(ready: Ready, most: int) -> Rows:
    """Take rows of both kinds, in order."""
    return Rows.concat([*Ready.take_apart([ready], most)]).in_order()


@settings(max_examples=200)
@given(steps)
def test_ready_behaves_like_a_sorted_list(actions: list[tuple[str, object]]) -> None:
    """V6: ordered by due time, then offset."""
    ready, model = Ready(limit=50), list[tuple[int, int]]()
    for action, argument in actions:
        if action == "push":
            assert isinstance(argument, list)
            new = sorted({offset: due for due, offset in argument}.items(), key=lambda p: p[::-1])
            new = [(due, offset) for offset, due in new if offset not in {o for _, o in model}]
            if new:
                due, offsets = (np.array(column, np.int64) for column in zip(*new, strict=True))
                ready.push(Rows.fresh(due, offsets).in_order())
                model = sorted(model + new)
        elif action == "withdraw":
            assert isinstance(argument, list)
            gone = set(argument)
            ready.withdraw(np.array(argument, np.int64))
            model = [key for key in model if key[1] not in gone]
        else:
            assert isinstance(argument, int)
            taken = take(ready, argument)
            assert as_list(taken) == model[:argument]
            if action == "put_back":
                ready.put_back(taken)
            else:
                model = model[argument:]
        ready._check()
        assert len(ready) == len(model)
        assert ready.room == max(0, 50 - len(model))
    assert as_list(ready.drain()) == model


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(["push", "tried"]), keys),
            st.tuples(st.just("take"), st.integers(1, 30)),
        ),
        max_size=40,
    )
)
def test_retried_and_new_messages_share_deliveries(actions: list[tuple[str, object]]) -> None:
    """Q6: while both sorted lists have messages, one in four is a retried one."""
    ready = Ready(limit=50)
    lists: dict[str, list[tuple[int, int]]] = {"push": [], "tried": []}
    number = 0
    credit = 0
    for action, argument in actions:
        if action != "take":
            assert isinstance(argument, list)
            due = np.sort(np.array([due for due, _ in argument], np.int64))
            rows = Rows.fresh(due, np.arange(number, number + len(due)))
            number += len(due)
            (ready.push if action == "push" else ready.push_tried)(rows)
            lists[action] = sorted(lists[action] + as_list(rows))
        else:
            assert isinstance(argument, int)
            fresh, old = lists["push"], lists["tried"]
            olds = 0
            if old:
                olds, credit = divmod(credit + min(argument, len(fresh)), TRIED_SHARE)
                olds = min(len(old), max(olds, argument - len(fresh)))
            taken = sorted(fresh[: argument - olds] + old[:olds])
            assert as_list(take(ready, argument)) == taken
            lists = {"push": fresh[argument - olds :], "tried": old[olds:]}
        ready._check()
        assert len(ready) == sum(map(len, lists.values()))
        assert ready.room == max(0, 50 - len(lists["push"]))


def test_retried_messages_are_spread_evenly_among_new_ones() -> None:
    """Q6: also if each take is for a single message. Neither kind starves."""
    ready = Ready(limit=1000)
    ready.push_tried(Rows.fresh(np.zeros(100, np.int64), np.arange(100)))
    ready.push(Rows.fresh(np.ones(400, np.int64), np.arange(100, 500)))
    old = [int(take(ready, 1).offsets[0]) < 100 for _ in range(400)]
    assert [sum(old[at : at + 40]) for at in range(0, 400, 40)] == [10] * 10
    assert take(ready, 1000).height == 100
