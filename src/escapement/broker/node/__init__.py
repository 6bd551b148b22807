"""A node: one process that runs a broker for each bundle of topics that it owns.

Begin with ``node``. ``balancer`` decides which bundles a node takes and releases.
"""
