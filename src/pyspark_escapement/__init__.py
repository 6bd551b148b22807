"""The module by which Spark finds the data source ``escapement`` without registration.

Spark searches every module whose name begins with ``pyspark_`` for a ``DefaultSource``.
"""

from escapement.pipeline.source.source import EscapementSource as DefaultSource

__all__ = ["DefaultSource"]
