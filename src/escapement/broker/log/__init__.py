"""Reading the log, and the changes to its messages since their publication.

Begin with ``log_reader.py`` and ``amendments.py``.
"""
