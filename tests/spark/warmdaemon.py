"""What Spark starts a kind of Python process from, with what all of these import read already.

Spark's own imports nothing before it forks, so that each process reads some hundred files anew.
"""

from __future__ import annotations

import sys
from importlib import import_module

from pyspark.daemon import manager

if __name__ == "__main__":
    for name in (*sys.argv[1:], "escapement.pipeline.reader", "pyarrow"):
        import_module(name)
    manager()
