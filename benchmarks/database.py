"""The private database server of a benchmark, and its memory."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.database.servers import MysqlServer, private_server


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option --buffer-pool. With its default, 128 MB, a large log is read from disk."""
    parser.add_argument("--buffer-pool", help="memory of the database's buffer pool, such as 4G")


def database(options: argparse.Namespace, *further: str) -> AbstractContextManager[MysqlServer]:
    """Start a server for the duration of the context.

    Args:
      options: those of ``add_options``.
      further: options of the server.
    """
    pool = options.buffer_pool
    sized = [f"--innodb-buffer-pool-size={pool}"] if pool else []
    return private_server(*sized, *further)
