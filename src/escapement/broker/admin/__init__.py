"""The administrative operations (*verbs*), in a module for each noun.

To add a verb, write its function and enter it in ``VERBS`` of its module. ``Admin`` runs verbs.
"""

from escapement.broker.admin.admin import Admin

__all__ = ["Admin"]
