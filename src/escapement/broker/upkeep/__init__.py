"""Background tasks that keep index and log small, complete and durable.

Each task has a module. Begin with ``checkpointer.py``, which writes index and state.
``compactor.py`` merges index segments, ``forgetter.py`` deletes old log tables, and ``filler.py``
adds past messages to the index.
"""
