"""The command line of the fuzzer: ``make fuzz COUNT=1000000 TARGET=frames``.

Each target runs in a process of its own until it has had COUNT inputs (frames, blocks, segments or
manifests). An exception that is not documented, or more than ``MEMORY_MIB`` of memory, ends it. The
input is then in the file that the last lines name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import atheris

with atheris.instrument_imports(
    include=["escapement.protocol", "escapement.message", "escapement.storage.index"]
):
    from fuzz.targets import TARGETS, seeds

MEMORY_MIB: Final = 1024
# The longest input. Longer ones find little more, and take longer.
INPUT_BYTES: Final = 4096


def main() -> int:
    """Fuzz one target, or each in its own process; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="of inputs of each target")
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--corpus", type=Path, help="directory that keeps interesting inputs")
    options = parser.parse_args()
    if options.target != "all":
        _fuzz(options.target, options.count, options.corpus)
    failed = 0
    for target in TARGETS:
        command = [sys.executable, "-m", "fuzz", "--target", target]
        command += ["--count", str(options.count)]
        if options.corpus is not None:
            command += ["--corpus", str(options.corpus / target)]
        failed |= subprocess.run(command, check=False).returncode
    return int(failed != 0)


def _fuzz(target: str, most: int, corpus: Path | None) -> None:
    """Fuzz one target; ends the process."""
    run, found, began_s = TARGETS[target], 0, time.monotonic()

    def once(data: bytes) -> None:
        nonlocal found
        found += run(data)
        if found >= most:
            print(f"{target}: {found} inputs, {time.monotonic() - began_s:.0f} s, no bug")
            sys.stdout.flush()
            os._exit(0)

    with tempfile.TemporaryDirectory(prefix="escapement-corpus-") as home:
        kept = Path(home) if corpus is None else corpus
        kept.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds(target)):
            (kept / f"seed-{number}").write_bytes(seed)
        atheris.Setup(
            [
                "fuzz",
                str(kept),
                f"-max_len={INPUT_BYTES}",
                f"-rss_limit_mb={MEMORY_MIB}",
                "-timeout=10",
                f"-artifact_prefix={target}-",
                "-print_final_stats=1",
                "-verbosity=0",
            ],
            once,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
