"""Where Spark finds the data source ``escapement`` by itself.

It looks into every module whose name begins with ``pyspark_`` for a ``DefaultSource``.
"""

from escapement.pipeline.source import EscapementSource as DefaultSource

__all__ = ["DefaultSource"]
