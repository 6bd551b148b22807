"""The input of commands: options, parsers of their values, and the connection to a broker.

Begin with ``options.py``, the options that several commands share. ``parameters.py`` parses their
values, and ``remote.py`` connects to the broker.
"""
