"""The groups of a batch's messages, compared with a dict (Q10)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import InvalidRequest
from escapement.group_names import members_of
from escapement.message import Blobs

NAMES = st.sampled_from(["", "a", "b", "import-7", "import-70", "x" * 200])


@given(st.lists(NAMES, min_size=1, max_size=30))
def test_rows_are_found_by_group(names: list[str]) -> None:
    """Q10: each group is listed once, by name, with its rows in order."""
    wanted: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        if name:
            wanted.setdefault(name, []).append(row)
    found = members_of(Blobs.of([name.encode() for name in names]))
    assert [(group, rows.tolist()) for group, rows in found] == sorted(wanted.items())


def test_a_batch_without_groups_has_no_members() -> None:
    assert members_of(None) == []
    assert members_of(Blobs.empty(0)) == []
    assert members_of(Blobs.empty(3)) == []


@pytest.mark.parametrize("wrong", [b"a b", b"a/b", b"\xc3\xa4", b"a\0", b"\0", b"..", b"x" * 201])
def test_invalid_group_name_is_refused(wrong: bytes) -> None:
    """Q10: an invalid name is found alone and among valid names."""
    for names in ([wrong], [wrong, wrong], [b"a", wrong, b""], [b"", wrong]):
        with pytest.raises(InvalidRequest):
            members_of(Blobs.of(names))


def test_65_536_messages_of_different_groups_are_told_apart() -> None:
    """Q10."""
    names = [b"group-%05d" % number for number in range(65_536)]
    found = members_of(Blobs.of(names[::-1]))
    assert [group.encode() for group, _ in found] == names
    rows = np.concatenate([rows for _, rows in found])
    assert (rows == np.arange(65_536)[::-1]).all()
