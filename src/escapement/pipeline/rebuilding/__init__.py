"""The engines of the job ``rebuild``: they build a delayed index on one machine, or with Spark.

Begin with pipeline/rebuild.py, which runs the job.
"""
