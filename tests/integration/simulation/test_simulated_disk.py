"""The simulated disk fails at each kind of call, and keeps what a real one would keep."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from escapement.errors import StorageUnavailable
from simulation.calls import Calls, Locks, Threads
from simulation.disk import CHANGES, CODES, Disk, Faults, Kind
from simulation.files import simulated

CONTENT = bytes(range(100))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Return a disk with an index of one file, and simulate it."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "there").write_bytes(CONTENT)
    disk = Disk(tmp_path, random.Random(0))
    with simulated([disk], Locks()):
        yield disk


def sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


CALLS: dict[Kind, Callable[[Path], object]] = {
    Kind.OPEN: lambda index: os.close(os.open(index, os.O_RDONLY)),
    Kind.READ: lambda index: (index / "there").read_bytes(),
    Kind.LIST: lambda index: list(index.iterdir()),
    Kind.CREATE: lambda index: (index / "new").open("xb").close(),
    Kind.WRITE: lambda index: (index / "there").write_bytes(b"x"),
    Kind.SYNC: lambda index: sync(index / "there"),
    Kind.RENAME: lambda index: (index / "there").rename(index / "renamed"),
    Kind.DELETE: lambda index: (index / "there").unlink(),
    Kind.MAKE_DIRECTORY: lambda index: (index.parent / "index-01").mkdir(),
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", Kind)
def test_call_fails_with_the_errors_of_its_kind(disk: Disk, kind: Kind, code: int) -> None:
    disk.faults = Faults(1.0, code, [kind])
    if code in kind.codes:
        with pytest.raises(OSError, match="says the simulated disk") as error:
            CALLS[kind](disk.root / "index")
        assert error.value.errno == code
        assert disk.failed == {f"{kind.text} {errno.errorcode[code]}": 1}
    disk.heal()
    CALLS[kind](disk.root / "index")


def test_file_outside_of_an_index_never_fails(disk: Disk) -> None:
    disk.faults = Faults(1.0)
    (disk.root / "broker.id").write_bytes(CONTENT)
    assert (disk.root / "broker.id").read_bytes() == CONTENT


def test_only_the_named_change_fails(disk: Disk) -> None:
    disk.faults = Faults(code=errno.ENOSPC)
    disk.break_at(3)
    path = disk.root / "index" / "new"
    with path.open("xb", buffering=0) as file:
        file.write(b"1")
        with pytest.raises(OSError, match="No space left"):
            file.write(b"2")
        file.write(b"3")
    assert path.read_bytes() == b"13"


def write_forever(file: io.FileIO) -> None:
    while True:
        file.write(CONTENT)


def test_torn_write_stores_a_part_before_it_fails(disk: Disk) -> None:
    found = set()
    for _ in range(20):
        with (disk.root / "index" / "new").open("wb", buffering=0) as file:
            disk.faults = Faults(1.0, errno.ENOSPC)
            with pytest.raises(OSError, match="No space left"):
                write_forever(file)
            disk.heal()
        found.add((disk.root / "index" / "new").stat().st_size)
    assert min(found) == 0
    assert max(found) > 1
    assert max(found) < len(CONTENT)


async def test_process_that_dies_in_a_write_leaves_a_part(
    disk: Disk, autojump_clock: trio.testing.MockClock
) -> None:
    locks, threads = Locks(), Threads()
    path = disk.root / "index" / "new"
    found = set()
    for _ in range(20):
        path.unlink(missing_ok=True)
        calls = Calls(threads, random.Random(0), locks)
        calls.slow_share = 1.0
        disk.hold(3, CHANGES)  # it is created, written, and written to the end
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, calls, path)
            await trio.sleep(3)  # less than a change takes in which a process is to die
            disk.take_image(power_failure=False)
            calls.kill()
        disk.restart()
        found.add(path.stat().st_size)
    threads.close()
    assert len(CONTENT) in found
    assert len(found) > 2


async def write(calls: Calls, path: Path) -> None:
    with suppress(StorageUnavailable):  # the process was killed
        await calls(path.write_bytes, CONTENT)
