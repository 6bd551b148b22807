"""Checks that promises in docs/features.md name their tests, or say why they are not built."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
FEATURES = ROOT / "docs" / "features.md"
# The number of promises of each kind. Ids are P1 to P12, and so on.
KINDS = {"P": 12, "V": 19, "Q": 10, "N": 9, "B": 18, "O": 9}
IDS = [f"{kind}{number}" for kind, most in KINDS.items() for number in range(1, most + 1)]
PROOF = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ID = re.compile(r"[PVQNBO]\d+")


class Promise(NamedTuple):
    """One row of the tables in docs/features.md."""

    id: str
    text: str
    state: str
    proof: str
    missing: str


@cache
def promises() -> list[Promise]:
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in FEATURES.read_text("utf-8").splitlines()
        if line.startswith("|")
    ]
    return [Promise(*row) for row in rows if ID.fullmatch(row[0])]


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of a file's test functions, and of its hypothesis state machine tests."""
    found = set()
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(name for name in found if name.lower().startswith("test"))


@pytest.mark.parametrize("page", ["docs/explanation/security.md"])
def test_page_names_tests_that_exist(page: str) -> None:
    proofs = PROOF.findall((ROOT / page).read_text("utf-8"))
    assert len(proofs) > 20
    assert [one for one in proofs if one[1] not in names_in(one[0])] == []


def test_promises_are_listed_once_and_in_order() -> None:
    assert [promise.id for promise in promises()] == IDS


@pytest.mark.parametrize("promise", promises(), ids=lambda promise: promise.id)
def test_promise_names_its_tests_or_says_what_it_waits_for(promise: Promise) -> None:
    proofs = PROOF.findall(promise.proof)
    assert proofs or not promise.proof, f"{promise.proof!r} names no test as `path::name`"
    assert [one for one, count in Counter(proofs).items() if count > 1] == [], "named twice"
    for path, name in proofs:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        assert name in names_in(path), f"{path} has no test {name}"
    waits = promise.missing.startswith("waits for: ")
    expected = {
        "built": bool(proofs) and not waits,
        "part": bool(proofs) and waits,
        "later": waits,
    }
    assert promise.state in expected, f"{promise.id} is {promise.state!r}: built, part or later?"
    assert expected[promise.state], f"{promise.id} is {promise.state}, and its row does not say why"
