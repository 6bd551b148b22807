"""The commands that run a broker and look after it, on its own machine.

Begin with ``serve.py``. The other commands take the options of `escapement serve`.
"""
