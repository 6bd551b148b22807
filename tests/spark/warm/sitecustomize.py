"""Has what Spark forks its Python processes from read already what all of them import.

Python imports a module of this name before it does anything else. Spark starts one such process
for each kind of work, for tasks as for each step of a plan, which imports nothing before it forks:
each of its children would read some hundred files anew.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

_FORKS: Final = ["-m", "pyspark.daemon"]
_ALL: Final = ("encodings.idna", "escapement.pipeline.source.source")
_READING: Final = (
    "escapement.pipeline.source.planning",
    "escapement.pipeline.source.reading",
    "numpy.ma",
)
_WRITING: Final = ("escapement.pipeline.sink.bulk_write", "pyspark.sql.functions")
_TASKS: Final = ("escapement.pipeline.archiving.tasks", "escapement.pipeline.sink.rows", "pandas")
# By the kind of work; of others one or two processes are started.
_USED: Final = {
    "pyspark.worker": (*_READING, *_WRITING, *_TASKS, "pyarrow.pandas_compat"),
    "pyspark.sql.worker.plan_data_source_read": _READING,
    "pyspark.sql.worker.data_source_pushdown_filters": _READING,
    "pyspark.sql.worker.write_into_data_source": _WRITING,
}

if sys.orig_argv[1:3] == _FORKS:
    # Spark names a jar of its own there, of which each task would read anew what is in it.
    for path in [path for path in sys.path if path.endswith(".jar")]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
    kind = sys.orig_argv[3]
    for name in (kind, *_ALL, *_USED[kind]) if kind in _USED else ():
        import_module(name)
