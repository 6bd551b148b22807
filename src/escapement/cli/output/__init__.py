"""The output of commands: messages, rows of message tables, tables and bar charts.

Begin with ``table.py``, which prints most answers. ``line.py`` prints messages, ``rows.py`` rows of
message tables, and ``bars.py`` bar charts.
"""
