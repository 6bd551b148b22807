"""What a subscription may hand out now, in the order it is due."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escapement.broker.ready import Ready, Rows

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


@settings(max_examples=200)
@given(steps)
def test_ready_behaves_like_a_sorted_list(actions: list[tuple[str, object]]) -> None:
    """V6: due order by time, then offset."""
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
            count = ready.withdraw(np.array(argument, np.int64))
            assert count == sum(offset in gone for _, offset in model)
            model = [key for key in model if key[1] not in gone]
        else:
            assert isinstance(argument, int)
            taken = ready.take(argument)
            assert as_list(taken) == model[:argument]
            if action == "put_back":
                ready.put_back(taken)
            else:
                model = model[argument:]
        ready._check()
        assert len(ready) == len(model)
        assert ready.room == max(0, 50 - len(model))
    assert as_list(ready.drain()) == model
