"""Preloads modules in the daemons from which Spark forks its Python processes.

Python imports a module of this name at its start. Spark starts one daemon for each kind of work:
for tasks and for each step of a plan. A daemon imports nothing before it forks, so each of its
children would read hundreds of files again.
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
# Modules by kind of work. Spark starts only one or two processes of other kinds.
_USED: Final = {
    "pyspark.worker": (*_READING, *_WRITING, *_TASKS, "pyarrow.pandas_compat"),
    "pyspark.sql.worker.plan_data_source_read": _READING,
    "pyspark.sql.worker.data_source_pushdown_filters": _READING,
    "pyspark.sql.worker.write_into_data_source": _WRITING,
}

if sys.orig_argv[1:3] == _FORKS:
    # Spark adds one of its jars to the path, and each task would read the jar's directory again.
    for path in [path for path in sys.path if path.endswith(".jar")]:
        sys.path.remove(path)
        sys.path_importer_cache.pop(path, None)
    kind = sys.orig_argv[3]
    for name in (kind, *_ALL, *_USED[kind]) if kind in _USED else ():
        import_module(name)
