"""The data pipeline: the Spark data source and the Spark jobs, beside a broker on the same log.

The pipeline reads and writes the database through ``escapement.storage`` and imports neither
broker nor client. Spark's interfaces are implemented in a few thin adapters (``source``,
``reader``, ``stream``, ``writer``) over plain Python. pyspark and pyarrow come with the extra
``escapement[spark]``; no other package of escapement imports them.
"""
