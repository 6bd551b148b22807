"""SQL queries over messages, without Spark.

Begin with query.py, which runs a query. narrowing.py finds which messages a query needs.
"""
