"""The output of commands: messages, tables and bar charts.

Begin with ``table.py``, which prints most answers. ``line.py`` prints messages, and ``bars.py`` bar
charts.
"""
