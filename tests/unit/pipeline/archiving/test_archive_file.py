"""The files of an archive, without Spark: their content, and the detection of damage."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from escapement.errors import InvalidRequest, StorageError
from escapement.names import TopicName
from escapement.pipeline.archiving import archive_file
from escapement.pipeline.archiving.archive_file import (
    FILE_SCHEMA,
    Encoded,
    decode,
    directory_of,
    encode,
)
from escapement.pipeline.archiving.digest import Content, Digest
from escapement.pipeline.archiving.local_files import store
from escapement.pipeline.arrow import present, values_of
from escapement.pipeline.directories.shared_directory import SharedDirectory

TOPIC = "shop/eu/orders"
MIDNIGHT = datetime(2027, 1, 31, tzinfo=UTC)
Row = dict[str, Any]

instants = st.integers(-3_600_000, 3_600_000).map(lambda ms: MIDNIGHT + timedelta(milliseconds=ms))
rows = st.fixed_dictionaries(
    {
        "deliver_at": instants,
        "published_at": instants,
        "key": st.none() | st.binary(min_size=1, max_size=4),
        "properties": st.dictionaries(
            st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3
        ).map(lambda found: list(found.items())),
        "priority": st.integers(0, 255),
        "attempt": st.none() | st.integers(0, 9),
        "state": st.sampled_from(["acked", "cancelled"]),
        "payload": st.binary(max_size=20),
    }
)
tables = st.lists(rows, min_size=1, max_size=30).map(
    lambda found: [{"offset": 7 * number, **row} for number, row in enumerate(found)]
)


def batches(found: Sequence[Row], cuts: set[int]) -> list[Any]:
    """Return slices of one table, as the log returns them."""
    whole = pa.RecordBatch.from_pylist(found, schema=FILE_SCHEMA)
    bounds = [0, *sorted(cut % len(found) for cut in cuts), len(found)]
    cut = [whole.slice(low, high - low) for low, high in pairwise(bounds)]
    return [one for one in cut if len(one)]


def digest(found: Sequence[Row], cuts: set[int], topic: str = TOPIC) -> Digest:
    content = Content(topic)
    for batch in batches(found, cuts):
        content.add(batch)
    return content.digest()


def read(files: Sequence[Encoded]) -> list[Row]:
    found = [
        row
        for file in files
        for row in parquet.read_table(pa.BufferReader(file.content)).to_pylist()
    ]
    return sorted(found, key=lambda row: row["offset"])


@given(tables, st.sets(st.integers(0, 29), max_size=4))
def test_archive_file_decodes_to_the_same_messages(found: list[Row], cuts: set[int]) -> None:
    """N8: all columns, divided by day, with the digest computed while writing."""
    files = list(encode(TOPIC, batches(found, cuts)))
    assert read(files) == found
    for file in files:
        whole = decode(file.content)
        inside = [row for row in found if row["offset"] in whole.offsets]
        assert {row["published_at"].date() for row in inside} == {whole.day}
        assert (whole.topic, whole.digest) == (TOPIC, file.digest)
        assert whole.digest == digest(inside, set())
        described = whole.described
        for name, least, most in (
            ("deliver_at", described.min_due_ms, described.max_due_ms),
            ("published_at", described.min_published_ms, described.max_published_ms),
        ):
            times_ms = [round(row[name].timestamp() * 1000) for row in inside]
            assert (least, most) == (min(times_ms), max(times_ms))
        assert described.messages == len(inside) == len(whole.offsets)
        assert (described.first_offset, described.last_offset) == (
            inside[0]["offset"],
            inside[-1]["offset"],
        )


@given(tables, st.sets(st.integers(0, 29), max_size=4), st.data())
def test_digest_depends_on_content_and_not_on_batches(
    found: list[Row], cuts: set[int], data: st.DataObject
) -> None:
    """N8: every column of every message, their order, and the topic count."""
    before = digest(found, set())
    assert digest(found, cuts) == before
    assert digest(found, set(), "shop/eu/other") != before
    number = data.draw(st.integers(0, len(found) - 1))
    name = data.draw(st.sampled_from(FILE_SCHEMA.names))
    other = data.draw(tables)[0] | {"offset": found[number]["offset"] + 1}
    changed = [*found[:number], found[number] | {name: other[name]}, *found[number + 1 :]]
    assert (digest(changed, cuts) == before) == (changed == found)
    moved = [*found[number:], *found[:number]]
    assert (digest(moved, cuts) == before) == (moved == found)


def plain(count: int) -> list[Row]:
    filled = {"key": None, "properties": [], "priority": 1, "attempt": None, "state": "acked"}
    times = {"deliver_at": MIDNIGHT, "published_at": MIDNIGHT}
    return [{"offset": n, **times, **filled, "payload": b"%d" % n} for n in range(count)]


def test_large_part_is_split_into_several_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """N8: a file is held in memory while it is written."""
    monkeypatch.setattr(archive_file, "_MOST_BYTES", 1)
    files = list(encode(TOPIC, batches(plain(30), {10, 20})))
    assert [file.digest.messages for file in files] == [10, 10, 10]
    assert read(files) == plain(30)


def test_damaged_or_wrong_archive_file_is_refused() -> None:
    """N8: truncated or changed, with a repeated message, of two days, or without messages."""
    (file,) = encode(TOPIC, batches(plain(5), set()))
    content = file.content.to_pybytes()
    assert decode(file.content).day == date(2027, 1, 31)
    with pytest.raises(StorageError, match="not a valid archive file"):
        decode(pa.py_buffer(content[:-1]))
    changed = content.replace(b"acked", b"asked")
    assert decode(pa.py_buffer(changed)).digest != file.digest
    (twice,) = encode(TOPIC, batches(plain(5), set()) * 2)
    with pytest.raises(StorageError, match="a message twice"):
        decode(twice.content)
    with pytest.raises(StorageError, match="no messages"):
        decode(archive_file._Encoder(TOPIC).end().content)
    several = archive_file._Encoder(TOPIC)
    earlier = plain(6)[5] | {"published_at": MIDNIGHT - timedelta(seconds=1)}
    for some in batches([*plain(5), earlier], set()):
        several.add(some)
    with pytest.raises(StorageError, match="several days"):
        decode(several.end().content)
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(plain(5), schema=FILE_SCHEMA), sink)
    with pytest.raises(StorageError, match=r"not a valid archive file.*escapement\.topic"):
        decode(sink.getvalue())


def test_task_compares_stored_files_with_the_messages_it_wrote(tmp_path: Path) -> None:
    """N8: the digests before writing and after reading must be equal."""
    those, (other,) = plain(6), encode(TOPIC, batches(plain(7), set()))
    files = [*encode(TOPIC, batches(those, set())), other]
    directory = SharedDirectory.mark_in(tmp_path / "run")
    stored = list(store(directory, 3, files))
    assert [one.found.digest for one in stored] == [one.digest for one in stored]
    for one, file in zip(stored, files, strict=True):
        content = (tmp_path / "run" / one.name).read_bytes()
        assert content == file.content.to_pybytes()
        assert one.found.described.sha256 == sha256(content).hexdigest()
    again = list(store(directory, 3, files))
    assert {one.name for one in stored}.isdisjoint(one.name for one in again)
    (swapped,) = store(directory, 3, [Encoded(other.content, files[0].digest)])
    assert swapped.found.digest != swapped.digest
    with pytest.raises(StorageError, match="not a valid archive file"):
        list(store(directory, 3, [Encoded(other.content[:-1], other.digest)]))
    late = store(directory, 3, files)
    next(late)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(StorageError, match="No such file"):
        list(late)


def test_topics_with_long_names_have_separate_directories(tmp_path: Path) -> None:
    """N8: file names have at most 255 bytes on most systems, and topic names up to 602."""
    day, long = date(2027, 1, 31), "n" * 200
    assert directory_of(TopicName("shop", "eu", "orders"), day) == (
        "namespace=shop%2Feu/topic=shop%2Feu%2Forders/day=2027-01-31"
    )
    within = "n" * 100
    for names in (("shop", "eu", long), (within, within, within), (long, long, long)):
        (tmp_path / directory_of(TopicName(*names), day)).mkdir(parents=True)
    ends = [TopicName(long, long, long[1:] + end) for end in "ab"]
    ends += [TopicName(long, long[1:] + end, long) for end in "ab"]
    assert len({directory_of(name, day) for name in ends}) == 4
    assert len({directory_of(name, day).split("/")[0] for name in ends}) == 3


def test_task_without_access_to_the_drivers_directory_writes_nothing(tmp_path: Path) -> None:
    """N8: files on the worker's own disk would never be found or deleted."""
    files = list(encode(TOPIC, batches(plain(5), set())))
    directory = SharedDirectory.mark_in(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(InvalidRequest, match="file system that driver and workers share"):
        list(store(directory, 3, files))
    assert not list(tmp_path.iterdir())


def test_numbers_are_read_without_pandas() -> None:
    """N8: from slices and empty columns. Importing pandas takes long."""
    column = pa.array([1, None, 3, 4], pa.int32()).slice(1)
    assert present(column).tolist() == [False, True, True]
    assert values_of(column, np.int32)[1:].tolist() == [3, 4]
    assert not len(values_of(column.slice(0, 0), np.int32))
    program = """
import sys
import numpy as np
from escapement.pipeline.archiving.archive_file import FILE_SCHEMA, decode, encode
from escapement.pipeline.arrow import *
one = np.ones(1, np.int64)
names = {"payload": binaries(Blobs.of([b"x"])), "key": no_binaries(1), "properties": no_maps(1)}
names |= {"offset": longs(one), "deliver_at": instants(one), "published_at": instants(one)}
names |= {"priority": shorts(one), "attempt": integers(one)}
names |= {"state": words(["a", "b"], one.astype(np.uint8))}
(file,) = encode("t", [record_batch(FILE_SCHEMA, names)])
assert decode(file.content).digest == file.digest
print("pandas" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (said.stdout, said.stderr) == ("False\n", "")
