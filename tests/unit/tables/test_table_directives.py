"""Directives in the COMMENT of a message table: parsing, writing, and errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escapement.errors import TableRejected
from escapement.tables.directives import (
    MAX_COMMENT,
    MAX_COUNT,
    MAX_DIRECTIVE_MS,
    Directives,
    Spelling,
    is_message_table,
    parse_comment,
    write_comment,
)
from support.database.message_tables import CURRENT, FIRST, comment_of

REQUIRED: Final = {
    "ack_wait": "30",
    "purge_after": "86400",
    "batch_size": "10",
    "cache_size": "10000",
    "poller_interval": "30",
}
OPTIONAL: Final = {"min_backoff": "10", "max_backoff": "3600"}
TIMES: Final = {
    "ack_wait": "ack_wait_ms",
    "min_backoff": "min_backoff_ms",
    "max_backoff": "max_backoff_ms",
    "purge_after": "purge_after_ms",
    "poller_interval": "poll_interval_ms",
}
PREFIXES: Final[Mapping[Spelling, str]] = {"vitess": "vt_", "escapement": ""}


def comment(spelling: Spelling = "escapement", **values: str | None) -> str:
    """Return a COMMENT with the required directives; None omits one, a text replaces it."""
    items = [f"{spelling}_message"]
    for name, value in (REQUIRED | values).items():
        if value is not None:
            items.append(f"{PREFIXES[spelling]}{name}={value}")
    return ",".join(items)


def parsed(text: str) -> Directives:
    return parse_comment(text, "mails").directives


def refusal(text: str) -> str:
    with pytest.raises(TableRejected) as caught:
        parse_comment(text, "mails")
    return str(caught.value)


def test_directives_of_both_editions_are_read_as_they_stand() -> None:
    """V8: the COMMENTs of the documented tables."""
    first = Directives(
        ack_wait_ms=30_000,
        min_backoff_ms=30_000,
        max_backoff_ms=None,
        purge_after_ms=86_400_000,
        batch_size=10,
        cache_size=10_000,
        poll_interval_ms=30_000,
    )
    found = parse_comment(comment_of(FIRST), "my_message")
    assert found == ("vitess", first, ())
    found = parse_comment(comment_of(CURRENT), "my_message")
    assert found.unknown == ()
    assert found.directives.min_backoff_ms == 30_000
    assert found.directives.max_backoff_ms == 3_600_000


@pytest.mark.parametrize("spelling", PREFIXES)
@pytest.mark.parametrize("name", REQUIRED)
def test_missing_directive_is_named_with_what_to_write(name: str, spelling: Spelling) -> None:
    written = PREFIXES[spelling] + name
    assert refusal(comment(spelling, **{name: None})) == (
        f"Table mails has no directive {written}. Add {written}={REQUIRED[name]} to its COMMENT."
    )


def test_all_missing_directives_are_named_at_once() -> None:
    said = refusal("vitess_message,vt_ack_wait=30,vt_purge_after=1,vt_batchsize=10")
    assert "no directives vt_batch_size, vt_cache_size, vt_poller_interval" in said
    assert "but it has 'vt_batchsize=10'" in said
    assert "Add vt_batch_size=10,vt_cache_size=10000,vt_poller_interval=30 to" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in TIMES for value in ("", "x", "-1", "30s", "1e3", ".5", "5.")),
        *((name, "1" + "0" * 11) for name in TIMES),
        *((name, "0") for name in TIMES if name != "purge_after"),
        *((name, "9" * 200) for name in TIMES),
        *(
            (name, value)
            for name in ("batch_size", "cache_size")
            for value in ("", "0", "-1", "1.5", "ten", str(MAX_COUNT + 1), "9" * 200)
        ),
        ("batch_size", "١٠"),
        ("ack_wait", "٣٠"),
    ],
)
def test_bad_value_is_refused_with_what_to_write(name: str, value: str) -> None:
    said = refusal(comment(**{name: value}))
    assert said.startswith(f"Directive {name} of table mails has the value ")
    assert f"such as {name}={(REQUIRED | {'min_backoff': '30', 'max_backoff': '3600'})[name]}." in (
        said
    )
    assert len(said) < 250


def test_directive_without_a_value_is_refused() -> None:
    text = comment("vitess", ack_wait=None) + ",vt_ack_wait"
    assert refusal(text).startswith("Directive vt_ack_wait of table mails has no value. Write ")


def test_directive_written_twice_is_refused() -> None:
    said = refusal(comment() + ",ack_wait=30")
    assert said.startswith("Table mails has the directive ack_wait twice.")


def test_a_second_marker_is_refused() -> None:
    for second in ("escapement_message", "vitess_message"):
        assert "markers" in refusal(f"{comment()},{second}")


def test_unknown_items_are_reported_and_do_not_reject_the_table() -> None:
    found = parse_comment(f"mails to send, {comment()}, vt_ack_wait=7 ,colour = red", "mails")
    assert found.unknown == ("mails to send", "vt_ack_wait=7", "colour = red")
    assert found.directives.ack_wait_ms == 30_000


def test_directives_of_the_other_spelling_are_unknown() -> None:
    said = refusal(comment("vitess").replace("vitess_message", "escapement_message"))
    assert said.startswith("Table mails has no directives ack_wait, ")
    assert "'vt_ack_wait=30'" in said


def test_white_space_and_empty_items_have_no_meaning() -> None:
    text = "\n " + comment().replace(",", " ,,\n\t").replace("=", " = ") + " ,"
    assert parsed(text) == parsed(comment())


@pytest.mark.parametrize(
    ("written", "expected_ms"),
    [("0.5", 500), ("1.25", 1250), ("0.0001", 1), ("1.0001", 1001), ("030", 30_000)],
)
def test_fraction_of_a_second_is_rounded_up_to_milliseconds(written: str, expected_ms: int) -> None:
    assert parsed(comment(ack_wait=written)).ack_wait_ms == expected_ms


def test_shortest_wait_between_retries_is_ack_wait_by_default() -> None:
    assert parsed(comment(ack_wait="7")).min_backoff_ms == 7000
    assert parsed(comment(ack_wait="7", min_backoff="5")).min_backoff_ms == 5000
    assert parsed(comment(ack_wait="7")).max_backoff_ms is None


def test_longest_wait_below_the_shortest_is_refused() -> None:
    assert "less than min_backoff of 10 seconds" in refusal(
        comment(min_backoff="10", max_backoff="9.5")
    )
    said = refusal(comment("vitess", max_backoff="29"))
    assert "less than vt_ack_wait, which is the default of vt_min_backoff," in said
    assert parsed(comment(max_backoff="30")).max_backoff_ms == 30_000


@pytest.mark.parametrize("text", ["", "orders", "vitess_messages", "no vitess_message", "a=b"])
def test_comment_without_a_marker_is_not_a_message_table(text: str) -> None:
    assert not is_message_table(text)
    assert "is not a message table" in refusal(text)


def test_marker_may_follow_other_items() -> None:
    assert is_message_table("mails, vitess_message , vt_ack_wait=30")


# -- properties ----------------------------------------------------------------

times = st.integers(1, MAX_DIRECTIVE_MS)
counts = st.integers(1, MAX_COUNT)


@st.composite
def any_directives(draw: st.DrawFn) -> Directives:
    ack_wait_ms = draw(times)
    shortest_ms = draw(st.one_of(st.just(ack_wait_ms), times))
    return Directives(
        ack_wait_ms=ack_wait_ms,
        min_backoff_ms=shortest_ms,
        max_backoff_ms=draw(st.one_of(st.none(), st.integers(shortest_ms, MAX_DIRECTIVE_MS))),
        purge_after_ms=draw(st.integers(0, MAX_DIRECTIVE_MS)),
        batch_size=draw(counts),
        cache_size=draw(counts),
        poll_interval_ms=draw(times),
    )


@given(any_directives(), st.sampled_from(list(PREFIXES)))
def test_written_directives_are_read_back_unchanged(
    directives: Directives, spelling: Spelling
) -> None:
    text = write_comment(directives, spelling)
    assert parse_comment(text, "mails") == (spelling, directives, ())
    assert len(text) <= MAX_COMMENT
    assert "'" not in text
    assert "\\" not in text


def is_number(text: str, fraction: bool) -> bool:
    parts = text.split(".") if fraction else [text]
    return len(parts) <= 2 and all(p and set(p) <= set("0123456789") for p in parts)


def model(text: str) -> dict[str, int | None] | None:
    """Return the directives of a COMMENT by a naive parser; None if it is refused."""
    items = [item.strip() for item in text.split(",")]
    markers = [item for item in items if item in ("vitess_message", "escapement_message")]
    if len(markers) != 1:
        return None
    prefix = "vt_" if markers[0] == "vitess_message" else ""
    found: dict[str, int | None] = {}
    for name in REQUIRED | OPTIONAL:
        values = [item for item in items if item.split("=")[0].strip() == prefix + name]
        if len(values) > 1 or (not values and name in REQUIRED):
            return None
        if not values:
            continue
        _, equals, value = values[0].partition("=")
        if not equals or not is_number(value.strip(), fraction=name in TIMES):
            return None
        number = Fraction(value.strip())
        if name in TIMES:
            number_ms = math.ceil(number * 1000)
            if not (0 if name == "purge_after" else 1) <= number_ms <= MAX_DIRECTIVE_MS:
                return None
            found[TIMES[name]] = number_ms
        elif 1 <= number <= MAX_COUNT:
            found[name] = int(number)
        else:
            return None
    shortest_ms = found.setdefault("min_backoff_ms", found["ack_wait_ms"])
    longest_ms = found.setdefault("max_backoff_ms", None)
    assert shortest_ms is not None
    return None if longest_ms is not None and longest_ms < shortest_ms else found


values = st.one_of(
    st.integers(1, 100_000).map(str),
    st.integers(1, 100_000).map(str),
    st.decimals(0, 5000, places=4).map(lambda value: f"{value:f}"),
    st.sampled_from(["", "0", "-1", "1.", ".5", "1e3", "00030", "x", " 3 ", "4=5", "1.2.3"]),
    st.text("0123456789.", max_size=8),
)
spaces = st.sampled_from(["", "", "", " ", "\n", "\t "])


@st.composite
def any_comment(draw: st.DrawFn) -> str:
    spelling: Spelling = draw(st.sampled_from(list(PREFIXES)))
    items = [f"{spelling}_message"]
    for name in REQUIRED | OPTIONAL:
        usual = (REQUIRED | OPTIONAL)[name]
        # Most items are good, so that many comments have one mistake or none.
        value = draw(values) if draw(st.integers(0, 7)) == 7 else usual
        wanted = draw(st.sampled_from([1] * 16 + [0, 2] + [0] * 8 * (name in OPTIONAL)))
        space = draw(spaces)
        items += [f"{PREFIXES[spelling]}{name}{space}={space}{value}"] * wanted
    items += draw(
        st.lists(st.sampled_from(["note", "", "a=b", "vt_x=1", "ack_wait", "vt_"]), max_size=2)
    )
    return f",{draw(spaces)}".join(draw(st.permutations(items)))


@given(any_comment())
def test_parser_agrees_with_a_naive_one(text: str) -> None:
    expected = model(text)
    try:
        found = parsed(text)
    except TableRejected:
        assert expected is None
    else:
        assert expected is not None
        assert found == Directives(**expected)  # type: ignore[arg-type]
