"""The data pipeline: what runs on Spark beside a broker, on the same log.

It reads and writes the database itself, through ``escapement.storage``, and knows neither
broker nor client. What it knows of Spark stands in few files (``source``, ``reader``,
``stream``), thin adapters over nouns that are plain Python; pyspark and pyarrow come with the
extra ``escapement[spark]`` and are imported nowhere else.
"""
