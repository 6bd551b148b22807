"""`escapement doctor`: checks of the machine, the data directory and the databases of a broker.

Each check returns findings: what it has seen, how bad that is, and what to do. Begin with
``finding.py``. Looking and judging are separate functions, so tests judge places and servers that
they do not have.
"""
