"""What the features of a run must keep, each with what its client was answered.

Each check yields a line for each violation. It knows only a history and the answers that the client
of its feature noted. The invariants of all messages are in ``simulation/checker.py``.
"""
