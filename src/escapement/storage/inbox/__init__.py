"""The inbox, and the tables of those that write to it: bulk jobs, schedules, group completions.

Begin with ``inbox.py``.
"""
