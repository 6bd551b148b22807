"""The speed of the delayed index alone: adding, checkpoints, scans in delivery order, compaction.

    python benchmarks/bench_index.py [--messages N]

Payloads are random bytes, due times are random within an hour. Everything runs in one thread, in a
temporary directory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from escapement.message import Blobs, MessageBatch
from escapement.storage.index import KEY_MAX, KEY_MIN, DelayedIndex, IndexLimits

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.storage.index_samples import write_checkpoint

SPREAD_MS = 3_600_000
# The number of messages that a scan reads at once.
FRAME = 4096
LIMITS = IndexLimits(memory_bytes=1 << 30)


def batch_of(count: int, low: int, high: int, rng: np.random.Generator) -> MessageBatch:
    lengths = rng.integers(low, high + 1, count).astype(np.uint32)
    return MessageBatch(Blobs(lengths, rng.bytes(int(lengths.sum()))))


def fill(
    index: DelayedIndex, messages: int, group: int, low: int, high: int, base: int = 0
) -> float:
    """Add messages in groups. Return the seconds spent adding, without making the messages.

    Args:
      group: the number of messages in a group.
      low: the size of the smallest payload, in bytes.
      high: the size of the largest payload, in bytes.
      base: the offset of the first message.
    """
    rng = np.random.default_rng(group)
    batches = [batch_of(group, low, high, rng) for _ in range(min(8, messages // group))]
    due = [rng.integers(10**12, 10**12 + SPREAD_MS, group) for _ in range(64)]
    spent = 0.0
    for at in range(messages // group):
        batch, due_ms = batches[at % len(batches)], due[at % 64]
        begin = time.perf_counter()
        index.add(1, base + at * group, due_ms, batch)
        spent += time.perf_counter() - begin
    return spent


def scan(index: DelayedIndex) -> tuple[int, float, float]:
    """Read all messages in delivery order.

    Returns:
      The number of messages, the seconds that the scan took, and the longest call of ``plan`` in
      milliseconds. A broker calls ``plan`` on its event loop.
    """
    at, messages, longest = KEY_MIN, 0, 0.0
    begin = time.perf_counter()
    while at < KEY_MAX:
        step = time.perf_counter()
        plan = index.plan(1, at, KEY_MAX, FRAME)
        longest = max(longest, time.perf_counter() - step)
        due_ms, offsets = plan.read()
        for low in range(0, len(due_ms), FRAME):
            part = slice(low, low + FRAME)
            messages += len(index.fetch(1, due_ms[part], offsets[part]).read())
        at = plan.stop
    return messages, time.perf_counter() - begin, longest * 1000


def report(what: str, messages: int, seconds: float, note: str = "") -> None:
    rate = messages / seconds
    print(f"{what:<44} {seconds * 1000:9.1f} ms {rate / 1e6:8.2f} million msg/s  {note}")


def with_index(body: Callable[[DelayedIndex, Path], None]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        body(DelayedIndex.open(Path(directory), LIMITS), Path(directory))


def bench_add(messages: int) -> None:
    for group, count in ((10_000, messages), (1_000, messages), (100, messages), (1, 50_000)):

        def body(index: DelayedIndex, _: Path, group: int = group, count: int = count) -> None:
            seconds = fill(index, count, group, 100, 100)
            note = f"{seconds / (count // group) * 1e6:.1f} µs a group"
            report(f"add, groups of {group}", count, seconds, note)

        with_index(body)


def bench_checkpoint(messages: int) -> None:
    for low, high in ((100, 100), (50, 500)):

        def body(index: DelayedIndex, _: Path, low: int = low, high: int = high) -> None:
            fill(index, messages, 10_000, low, high)
            begin = time.perf_counter()
            write_checkpoint(index, {0: (1, b"")})
            seconds = time.perf_counter() - begin
            note = f"{index.disk_bytes / seconds / 1e6:.0f} MB/s"
            report(f"checkpoint, {low}-{high} bytes", messages, seconds, note)

        with_index(body)


def bench_scan(messages: int) -> None:
    for low, high in ((100, 100), (50, 500)):
        for segments in (0, 1, 8):

            def body(
                index: DelayedIndex, _: Path, low: int = low, high: int = high, n: int = segments
            ) -> None:
                share = messages // max(n, 1)
                for at in range(max(n, 1)):
                    fill(index, share, min(10_000, share), low, high, base=at * share)
                    if n:
                        write_checkpoint(index, {0: (at, b"")})
                read, seconds, longest = scan(index)
                where = f"{n} segments" if n else "memory"
                note = f"longest plan {longest:.1f} ms"
                report(f"plan, read, fetch: {low}-{high} bytes, {where}", read, seconds, note)

            with_index(body)


def bench_compaction(messages: int) -> None:
    def body(index: DelayedIndex, _: Path) -> None:
        for at in range(8):
            share = messages // 8
            fill(index, share, min(10_000, share), 100, 100, base=at * share)
            write_checkpoint(index, {0: (at, b"")})
        assert index.manifest is not None
        begin = time.perf_counter()
        compaction = index.begin_compaction(list(index.manifest.segments))
        compaction.run()
        compaction.finish()
        index.install_compaction(compaction)
        report("compaction of 8 segments", messages, time.perf_counter() - begin)

    with_index(body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_200_000)
    messages = parser.parse_args().messages
    bench_add(messages)
    bench_checkpoint(messages)
    bench_scan(messages)
    bench_compaction(messages)


if __name__ == "__main__":
    main()
