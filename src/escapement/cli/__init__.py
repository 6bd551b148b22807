"""The command line.

A command parses its arguments, calls the code that does the work, and prints the result. It
decides nothing that the broker or the client could decide.

Begin with ``main.py``, which lists the commands. Each command is a module or a folder of its name.
"""

from escapement.interrupt import leaving_at_once

with leaving_at_once():
    from escapement.cli.main import main

__all__ = ["main"]
