"""`escapement doctor`: checks of the machine, the data directory and the databases of a broker.

Each check returns findings with a severity and a remedy. Begin with ``finding.py``. Looking and
judging are separate functions, so tests judge places and servers that they do not have.
"""
