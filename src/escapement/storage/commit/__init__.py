"""The commit pipeline, which makes changes durable in group commits.

Begin with ``commit.py``. Changes (``items.py``) wait in a lane (``lane.py``), and its writer
(``writer.py``) commits them in groups.
"""
