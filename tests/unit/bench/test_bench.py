"""Counts and summaries of the bench, and the command lines that it refuses."""

from __future__ import annotations

import click
import numpy as np
import pytest
import trio

from escapement import testing
from escapement.bench.command import bench
from escapement.bench.outcome import Outcome, Run
from escapement.bench.payload import PayloadSize
from escapement.bench.stage import now_ms
from escapement.bench.take import TIMEOUT_S, Take, take_all, take_batches, take_one_by_one
from escapement.bench.tally import Tally
from escapement.cli.main import run
from escapement.errors import InvalidRequest

# The options of every command, each with a valid value.
COMMON = {
    "--log": "mysql://localhost/bench",
    "--data": "bench-data",
    "--messages": "10",
    "--batch-size": "10",
    "--in-flight": "10",
    "--payload-bytes": "10-20",
    "--window-ms": "10",
    "--rate": "10",
    "--seconds": "10",
    "--tick": "10ms",
    "--pending": "10",
}
# The commands that use an option, if not all do.
USERS = {
    "--messages": {"burst", "catchup", "lateness", "pending", "publish", "restart", "workers"},
    "--window-ms": {"burst", "lateness", "pending", "publish", "restart"},
    "--rate": {"fanout", "lateness"},
    "--seconds": {"fanout", "lateness"},
}


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_message_received_before_it_is_due_is_early() -> None:
    tally = Tally()
    tally.add(column(0, 1), column(now_ms() + 60_000, now_ms() - 60_000))
    tally.add_one(2, now_ms() + 60_000, b"")
    assert tally.early() == 2


def test_message_with_an_earlier_due_time_than_requested_is_early() -> None:
    tally = Tally()
    tally.sent(column(0, 1), column(now_ms() + 60_000, now_ms() - 60_000))
    tally.add(column(1, 0), column(now_ms() - 1, now_ms() - 1))
    assert tally.early() == 1


def test_missing_message_is_lost_and_repeated_message_is_a_duplicate() -> None:
    tally = Tally()
    tally.sent(column(0, 1, 2, 3), column(1, 1, 1, 1))
    tally.add(column(3, 1), column(1, 1))
    tally.add_one(1, 1, b"")
    assert tally.received_count == 3
    assert tally.lost() == 2
    assert tally.duplicates() == 1


def test_message_that_was_never_sent_is_a_duplicate() -> None:
    """A message stored twice, or redelivered after its acknowledgement, would look like this."""
    tally = Tally()
    tally.sent(column(5, 3), column(1, 1))
    tally.add(column(3, 5, 4), column(1, 1, 1))
    tally.add(column(9), column(now_ms() + 60_000))
    assert tally.duplicates() == 1
    assert tally.early() == 1
    assert tally.lost() == 0


def test_a_tally_without_arrivals_has_lost_all() -> None:
    tally = Tally()
    tally.sent(column(5, 3), column(1, 1))
    assert (tally.lost(), tally.early(), tally.duplicates()) == (2, 0, 0)


def test_arrivals_are_counted_within_a_span_of_time() -> None:
    tally = Tally()
    since_ms = now_ms()
    tally.add(column(0, 1), column(1, 1))
    tally.add_one(2, 1, b"")
    until_ms = now_ms() + 1
    assert tally.arrived(since_ms, until_ms) == 3
    assert tally.arrived(since_ms - 1000, since_ms) == 0
    assert tally.arrived(until_ms, until_ms + 1000) == 0


async def test_duplicate_does_not_count_as_a_missing_message(
    mock_clock: trio.testing.MockClock,
) -> None:
    """The bench receives until each message has arrived, however many arrivals that takes."""
    async with testing.start() as world, world.connect() as broker:
        async with broker.consumer("x", "s", permits=1) as inbox:
            producer = await broker.producer("x")
            receipts = await producer.send_many([b"a", b"b", b"c"])
            tally = Tally()
            tally.sent(receipts.offsets, column(1, 1, 1))
            tally.add(column(0, 0), column(1, 1))
            await take_all(take_batches, inbox, tally, 3)
            assert (tally.received_count, tally.lost(), tally.duplicates()) == (5, 0, 2)


@pytest.mark.parametrize("take", [take_batches, take_one_by_one])
async def test_message_that_never_arrives_is_lost_after_the_timeout(
    mock_clock: trio.testing.MockClock, take: Take
) -> None:
    async with testing.start() as world, world.connect() as broker:
        async with broker.consumer("x", "s") as inbox:
            producer = await broker.producer("x")
            await producer.send_many([b"a", b"b"])
            tally = Tally()
            tally.sent(column(0, 1, 2), column(1, 1, 1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_all, take, inbox, tally, 3)
                await world.clock.advance(seconds=60)
            assert (tally.received_count, tally.lost(), tally.duplicates()) == (2, 1, 0)


@pytest.mark.parametrize("take", [take_batches, take_one_by_one])
async def test_timeout_of_the_bench_begins_anew_with_each_message(
    mock_clock: trio.testing.MockClock, take: Take
) -> None:
    async with testing.start() as world, world.connect() as broker:
        async with broker.consumer("x", "s") as inbox:
            producer = await broker.producer("x")
            pause_s = 0.75 * TIMEOUT_S
            for number in range(3):
                await producer.send(b"", delay=(round(number * pause_s * 1000), "ms"))
            tally = Tally()
            tally.sent(column(0, 1, 2), column(1, 1, 1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_all, take, inbox, tally, 3)
                await world.clock.advance(seconds=3 * TIMEOUT_S)
            assert tally.received_count == 3


def test_lateness_is_arrival_less_due_time() -> None:
    tally = Tally()
    tally.add(column(0, 1, 2), np.full(3, now_ms() - 5_000))
    late = tally.lateness()
    assert 5_000 <= late.p50 == late.p99 == late.max < 30_000


def test_outcome_has_medians_of_figures_and_sums_of_errors() -> None:
    runs = [Run(100, seconds, lost=1, early=0, duplicates=0) for seconds in (1.0, 4.0, 2.0)]
    found = Outcome("burst", "sqlite", {}, runs).as_json()
    assert found["messages_per_second"] == 50
    assert found["seconds"] == 2.0
    assert found["lost"] == 3
    assert len(found["runs"]) == 3
    assert "lateness_ms" not in found


def test_counts_of_a_run_without_lateness_are_those_of_the_tally() -> None:
    tally = Tally()
    tally.sent(column(0, 1, 2), column(1, 1, 1))
    tally.add(column(1, 1), column(1, 1))
    figures = Run.counted(tally, 2.0, {"client_cpu_seconds": 1.5}).figures()
    assert figures["messages_per_second"] == 1
    assert (figures["lost"], figures["early"], figures["duplicates"]) == (2, 0, 1)
    assert figures["client_cpu_seconds"] == 1.5
    assert "lateness_ms" not in figures


def test_run_that_does_not_measure_a_rate_has_no_rate() -> None:
    figures = Run(100, 2.0, is_rate=False).figures()
    assert figures == {"messages": 100, "seconds": 2.0}


@pytest.mark.parametrize(("text", "size"), [("100", (100, 100)), ("50-500", (50, 500))])
def test_payloads_have_the_sizes_asked_for(text: str, size: tuple[int, int]) -> None:
    found = PayloadSize.parse(text)
    assert found == size
    assert str(found) == text
    lengths = found.batch(np.random.default_rng(1), 1000).payloads.lengths
    assert lengths.min() >= size[0]
    assert lengths.max() <= size[1]


@pytest.mark.parametrize("text", ["", "-", "5-", "500-50", "-1", "ten"])
def test_invalid_payload_sizes_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="size"):
        PayloadSize.parse(text)


@pytest.mark.parametrize("name", sorted(bench.commands))
def test_every_command_has_every_common_option(name: str) -> None:
    """Each command reads the value, or refuses it and names the commands that use the option."""
    for flag, value in COMMON.items():
        if name in USERS.get(flag, {name}):
            bench.commands[name].make_context(name, [flag, value])
        else:
            with pytest.raises(click.UsageError, match="is for `bench ") as refused:
                bench.commands[name].make_context(name, [flag, value])
            assert all(f"`bench {user}`" in refused.value.message for user in USERS[flag])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("burst --rate 5", "`bench burst` does not use it"),
        ("publish --in-flight 20", "20 is less than one batch of 1,000"),
        ("publish --payload-bytes 20000", "make --batch-size or --payload-bytes smaller"),
        ("publish --sync", "--sync submits single messages"),
        ("publish --sync --batch-size 1 --rest-ms 5", "leave out --per-producer and --rest-ms"),
        ("fanout --messages 5", "`bench fanout` does not use it"),
        ("publish --payload-bytes ten", "'ten' is not a payload size"),
        ("publish --tick 0s", "the tick is too short"),
        ("publish --tick 5", "'5' is not a duration"),
        ("lateness --messages 5 --seconds 3", "Give --messages or --seconds"),
        (
            "lateness --broker escapement://x --data d",
            "--data is for a broker that this command starts",
        ),
        (
            "lateness --broker escapement://x --log l",
            "--log is for a broker that this command starts",
        ),
        ("restart --broker escapement://x", "leave out --broker"),
        ("burst --restart --broker escapement://x", "leave out --broker"),
    ],
)
def test_invalid_command_line_is_refused_in_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words.split()]) == 2
    output = capsys.readouterr()
    (line,) = [line for line in output.err.splitlines() if line.startswith("Error: ")]
    assert said in line
    assert output.out == ""
