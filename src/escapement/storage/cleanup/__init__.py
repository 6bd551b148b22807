"""Deletion of rows that nothing needs any more, and return of disk space, in small steps.

Begin with ``freeing.py``, which deletes the rows of deleted topics and other objects.
``forgetting.py`` deletes old generations of the log.
"""
