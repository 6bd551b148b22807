"""`escapement bench`: measurements of a broker on this machine, through the real client.

Each kind of measurement has a module of its own. Begin with ``command``.
"""
