"""The data pipeline: the Spark data source and the Spark jobs, beside a broker on the same log.

The pipeline reads and writes the database through ``escapement.storage`` and imports neither broker
nor client. Spark's interfaces are implemented in a few thin adapters over plain Python: the modules
``source``, ``batch_reader`` and ``stream_reader`` in the folder ``source``, and ``writer`` in the
folder ``sink``. Each job is a module of this folder: ``archive``, ``audit``, ``forecast``, ``lag``
and ``rebuild``. Begin with ``source/source.py``, or with the module of a job.
docs/architecture/pipeline.md is the overview.

pyspark and pyarrow come with the extra ``escapement[spark]``. No other package of escapement
imports them.
"""
