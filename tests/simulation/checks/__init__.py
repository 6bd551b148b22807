"""The checks of the features of a run.

Each check yields a line for each violation. It knows only a history and the answers that the client
of its feature noted. The rules for all messages are in ``histories``.
"""
