"""The reads of the Spark data source: topics as DataFrames, in a batch or as a stream.

Begin with source.py, the class that Spark loads. Plans (planning.py, streaming.py) are made in the
driver, and tasks read the messages (reading.py, archived_reading.py).
"""
