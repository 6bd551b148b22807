"""The commands: what an operator and a newcomer type.

A command reads its words, calls what does the work, and prints. It decides nothing that
the broker or the client could decide.
"""

from escapement.interrupt import leaving_at_once

with leaving_at_once():
    from escapement.cli.main import main

__all__ = ["main"]
