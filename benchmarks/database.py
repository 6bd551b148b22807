"""The private database server that a benchmark measures on, and how much memory it has."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers import MysqlServer, private_server


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--buffer-pool``; with the default, 128 MB, a large log comes from the disk."""
    parser.add_argument("--buffer-pool", help="how much the database keeps in memory, such as 4G")


def database(options: argparse.Namespace) -> AbstractContextManager[MysqlServer]:
    """A started server, by what ``add_options`` has read, that is gone afterwards."""
    pool = options.buffer_pool
    return private_server(*([f"--innodb-buffer-pool-size={pool}"] if pool else []))
