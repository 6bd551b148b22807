"""The inputs of hypothesis, which conftest.py chooses."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st


def test_inputs_are_the_same_in_each_run_unless_the_environment_asks_for_others() -> None:
    """A change never fails by chance."""
    wanted = "random" if os.environ.get("ESCAPEMENT_RANDOM") else "fixed"
    assert settings.default == settings.get_profile(wanted)
    first, second = drawn(), drawn()
    assert len(first) > 50
    assert first == second
    assert settings.get_profile("random").derandomize is False


def drawn() -> list[list[int]]:
    """Return the inputs of a test in one run."""
    found = []

    @settings(settings.get_profile("fixed"))
    @given(st.lists(st.integers()))
    def note(numbers: list[int]) -> None:
        found.append(numbers)

    note()
    return found
